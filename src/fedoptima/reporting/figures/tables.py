"""Figures as text, to be read without drawing and to be copied."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fedoptima.analysis.curve import shown_metrics
from fedoptima.analysis.formatting import brief, busy, duration, percent
from fedoptima.analysis.run_view import RunView
from fedoptima.core.text import cut
from fedoptima.core.types import SERVER
from fedoptima.reporting.figures.figure import shown_nodes


@dataclass(frozen=True)
class TextTable:
    title: str
    reading: str
    head: Sequence[str]  # the first column holds names, the others numbers
    rows: Sequence[Sequence[str]]
    marked: int | None = None  # a row that is pointed out


def key_figures(views: Sequence[RunView]) -> TextTable:
    """One line per figure, one column per run."""
    return TextTable(
        "Key figures",
        "Idle times are seconds an epoch; of devices, the mean.",
        ["", *(view.label for view in views)],
        [[name, *map(figure, views)] for name, figure in _figures(views).items()],
    )


def _figures(views: Sequence[RunView]) -> dict[str, Callable[[RunView], str]]:
    names = dict.fromkeys(name for view in views for name in shown_metrics(view.summary.curve))
    metrics = {f"final {cut(name)}": _final(name) for name in names}
    without: tuple[str, ...] = ()
    if not any(view.summary.reused_samples for view in views):
        without += _REUSED
    if all(point.accuracy is None for view in views for point in view.summary.curve):
        without += _ACCURACIES
    shown = {name: figure for name, figure in _KEY_FIGURES.items() if name not in without}
    return {**metrics, **shown}


def _final(name: str) -> Callable[[RunView], str]:
    def figure(view: RunView) -> str:
        found = [p.metrics[name] for p in view.summary.curve if name in p.metrics]
        return brief(found[-1]) if found else "-"

    return figure


def own_data(view: RunView) -> TextTable | None:
    """Of the last evaluation, if devices hold out some of their data."""
    found = view.summary.curve[-1].devices if view.summary.curve else {}
    if not found:
        return None
    names = list(dict.fromkeys(name for figures in found.values() for name in figures))
    return TextTable(
        "Devices on their own data",
        "The final model on what each device holds out of its own data.",
        ["", *map(cut, names)],
        [
            [device, *(brief(figures[name]) if name in figures else "-" for name in names)]
            for device, figures in found.items()
        ],
    )


def _best(view: RunView) -> str:
    found = [p.accuracy for p in view.summary.curve if p.accuracy is not None]
    return percent(max(found, default=None))


def _last(view: RunView) -> str:
    found = [p.accuracy for p in view.summary.curve if p.accuracy is not None]
    return percent(found[-1] if found else None)


def _per_epoch(amount: Callable[[RunView], float], scale: float = 1.0) -> Callable[[RunView], str]:
    return lambda view: brief(view.summary.per_epoch(scale * amount(view)))


_KEY_FIGURES: dict[str, Callable[[RunView], str]] = {
    "final accuracy": _last,
    "best accuracy": _best,
    "time": lambda view: duration(view.summary.seconds),
    "epochs": lambda view: brief(view.summary.epochs),
    "merges": lambda view: f"{view.summary.versions:,}",
    "server busy": lambda view: percent(view.summary.server_usage.utilisation),
    "server busy, reused": lambda view: percent(view.summary.server_usage.reused_share),
    "devices busy": lambda view: percent(view.summary.device_usage.utilisation),
    "server idle I, s/epoch": _per_epoch(lambda view: view.summary.server_usage.idle_1),
    "server idle II, s/epoch": _per_epoch(lambda view: view.summary.server_usage.idle_2),
    "device idle I, s/epoch": _per_epoch(lambda view: view.summary.device_usage.idle_1),
    "device idle II, s/epoch": _per_epoch(lambda view: view.summary.device_usage.idle_2),
    "useful samples/s": lambda view: brief(view.summary.useful_throughput),
    "device samples/s": lambda view: brief(view.summary.throughput.device),
    "samples only sent": lambda view: f"{view.summary.forwarded_samples:,}",
    "server samples/s": lambda view: brief(view.summary.throughput.server),
    "server samples/s, reused": lambda view: brief(view.summary.throughput.reused),
    "MB up/epoch": _per_epoch(lambda view: view.summary.traffic.up.total, 1e-6),
    "MB down/epoch": _per_epoch(lambda view: view.summary.traffic.down.total, 1e-6),
    "peak server memory, MiB": lambda view: brief(view.summary.memory.total.peak / 2**20),
    "queue, mean": lambda view: brief(view.summary.memory.queue.mean),
    "queue, peak": lambda view: brief(view.summary.memory.queue.peak),
    "mean staleness": lambda view: brief(view.summary.staleness.mean),
    "updates refused": lambda view: f"{view.summary.staleness.refused:,}",
    "samples wasted": lambda view: f"{view.summary.work.wasted:,}",
    "samples refused": lambda view: f"{view.summary.refused_samples:,}",
    "batches late": lambda view: f"{view.summary.balance.late_batches:,}",
}
_ACCURACIES = ("final accuracy", "best accuracy")
_REUSED = ("server busy, reused", "server samples/s, reused")  # only where a run has some


def nodes(view: RunView) -> TextTable:
    """How every node spent its time."""
    summary = view.summary
    rows = []
    for node in shown_nodes(view):
        use, join = summary.usage[node], view.joins.get(node)
        given = summary.balance.devices.get(node)
        each = summary.usage_per_epoch(use)
        rows.append(
            [
                node,
                brief(join.flops_per_second / 1e9) if join else "-",
                brief(join.bytes_per_second * 8e-6) if join else "-",
                busy(use.utilisation, use.reused_share),
                brief(each.idle_1),
                percent(use.idle_1_share),
                brief(each.idle_2),
                percent(use.idle_2_share),
                f"{given.batches:,}" if given else "-",
                f"{given.updates:,}" if given else "-",
            ]
        )
    return TextTable(
        "Nodes",
        "Speeds are those the devices have reported.",
        [
            *("", "GFLOP/s", "Mbit/s up", "busy"),
            *("idle I, s/epoch", "%", "idle II, s/epoch", "%", "batches", "updates"),
        ],
        rows,
        marked=0 if rows and rows[0][0] == SERVER else None,
    )


def splits(view: RunView) -> TextTable | None:
    """None where nothing is split."""
    if view.plan is None or not view.plan.table:
        return None
    plan = view.plan
    rows = [
        [
            f"{cut.split} (after {cut.name})",
            brief(cut.activation_bytes / 1e3),
            duration(cut.train_seconds),
            duration(cut.transfer_seconds),
            duration(cut.bottleneck_seconds),
        ]
        for cut in plan.table
    ]
    marked = next((i for i, cut in enumerate(plan.table) if cut.split == plan.split), None)
    return TextTable(
        "Where the model could be cut",
        "For one batch on the device that is slowest with that cut, as planned before the run. "
        "The marked row is the one that was used.",
        ["blocks on the device", "activations, kB", "training", "transfer", "longer of the two"],
        rows,
        marked,
    )
