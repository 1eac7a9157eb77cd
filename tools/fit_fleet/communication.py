"""Why does OAFL send 24 % more per round than SplitFed in the paper? Ways to count, in dry runs.

    python -m tools.fit_fleet.communication

MobileNetV3-Large on Testbed B, as in the paper's Fig. 2, for several limits on how many versions an
update may be behind. Writes results/calibration/communication.json.
"""

from __future__ import annotations

from collections.abc import Sequence

from fedoptima.analysis.summary import Summary
from fedoptima.config.fleet import FleetConfig
from fedoptima.core.stopping import StopRule
from fedoptima.paper_numbers import number
from tools.fit_fleet.figures import dry_run
from tools.records import ROOT, Record, origin, save

FLEETS = ("testbed_b", "testbed_b_homogeneous")
DELAYS = (None, 32, 16, 8)  # None: our default, 8 K = 128; 16: of FedAsync's authors
EPOCHS = 20.0


def compared(
    fleets: Sequence[str] = FLEETS,
    delays: Sequence[int | None] = DELAYS,
    epochs: float = EPOCHS,
) -> list[Record]:
    rows = []
    for preset in fleets:
        fleet, stop = FleetConfig(preset=preset), StopRule(epochs=epochs)
        barrier, _ = dry_run("b_image", fleet, "splitfed", stop)
        for delay in delays:
            options = {} if delay is None else {"max_delay": delay}
            summary, _ = dry_run("b_image", fleet, "oafl", stop, options)
            rows.append({"fleet": preset, "max_delay": delay, **_ratios(summary, barrier)})
    return rows


def _ratios(oafl: Summary, barrier: Summary) -> Record:
    """Bytes over SplitFed's, for as many samples or in the same time."""
    moved, before = _bytes(oafl), _bytes(barrier)
    ratios = {
        "per_trained_sample": moved / oafl.device_samples / (before / barrier.device_samples),
        "per_merged_sample": moved / oafl.epochs / (before / barrier.epochs),
        "per_second": moved / oafl.seconds / (before / barrier.seconds),
        "refused": oafl.refused_samples / oafl.device_samples,
    }
    return {name: round(value, 3) for name, value in ratios.items()}


def _bytes(summary: Summary) -> int:
    return summary.traffic.up.total + summary.traffic.down.total


def main() -> None:
    paper = number("b_image.communication.oafl")
    record = {
        **origin("tools.fit_fleet.communication", [], "cpu", None),
        "epochs": EPOCHS,
        "paper": paper.value,
        "ratios": compared(),
    }
    save(record, ROOT / "results" / "calibration" / "communication.json", "OAFL over SplitFed")


if __name__ == "__main__":
    main()
