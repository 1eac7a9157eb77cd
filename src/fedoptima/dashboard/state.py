"""A run at one moment as the page gets it: plain sections, sent again only when they change."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TypeVar

from fedoptima.analysis.curve import shown_metrics
from fedoptima.analysis.fleet import DeviceFacts, DeviceState
from fedoptima.analysis.formatting import roughly
from fedoptima.analysis.quality import quality_of
from fedoptima.analysis.summary import Summary
from fedoptima.core.plan import Plan
from fedoptima.core.text import cut, short_name
from fedoptima.core.types import SERVER, NodeId
from fedoptima.dashboard.accounts import RunAccounts
from fedoptima.dashboard.folder import SILENT, JsonObject, RunFolder, plain_quality
from fedoptima.trace.description import RunDescription

MOST_POINTS = 300  # of a curve
T = TypeVar("T")


@dataclass(frozen=True)
class Reading:
    """How far the files have been read."""

    behind: bool = True
    per_second: float = 0.0  # records, by the clock on the wall
    error: str = ""


def sections(
    run: RunFolder,
    description: RunDescription | None,
    kept: JsonObject,
    known: RunAccounts,
    reading: Reading,
) -> dict[str, object]:
    """``kept``: the run's summary.json, once there is one; ``description``: likewise."""
    summary = known.accounts.summary()
    return {
        "run": {"name": run.name, **about(description)},
        "now": {
            **_condition(run, kept, known, reading),
            **_figures(description, known, summary),
            "records": known.records,
            "records_per_second": number(reading.per_second),
        },
        "curve": _curve(summary),
        "speed": _speed(summary),
        "queue": _queue(description, summary),
        "rows": [_server_row(known, summary), *_device_rows(known, summary)],
        "notes": _notes(known),
    }


# ---- the run -------------------------------------------------------------------------------------


def about(description: RunDescription | None) -> dict[str, object]:
    if description is None:
        return dict.fromkeys(("recipe", "method", "model", "data", "seed", "clock"), "")
    return {
        "recipe": description.name,
        "method": short_name(description.method),
        "model": _name_in(description.recipe, "model"),
        "data": _name_in(description.recipe, "data"),
        "seed": description.seed,
        "clock": description.mode.clock,
    }


def _condition(
    run: RunFolder, kept: JsonObject, known: RunAccounts, reading: Reading
) -> dict[str, object]:
    state, text = condition(run, kept)
    if known.halt is not None and known.halt.failed:
        state, text = "failed", cut(known.halt.reason)
    elif state in ("running", "silent") and known.fleet.began is None:
        here = sum(facts.here for facts in known.fleet.devices.values())
        # A server that waits for its devices has nothing to write, and is well.
        since = f", {text}" if state == "silent" else ""
        state = "starting"
        text = "dividing the model" if known.fleet.planning else f"{here} devices here"
        text += since
    if reading.error:
        state, text = "unreadable", reading.error
    read = None
    if reading.behind:
        seconds = kept.get("seconds")
        whole = seconds if isinstance(seconds, int | float) and seconds > 0 else math.inf
        read = min(1.0, known.accounts.course.seconds / whole)
    return {"state": state, "text": text, "reading": number(read)}


def condition(run: RunFolder, kept: JsonObject) -> tuple[str, str]:
    """As its files say: how it is, and a word about it."""
    if kept:
        return "finished", cut(str(kept.get("reason", "")))
    if stopped := run.stopped():
        return "stopped", stopped
    silent = run.silent()
    if silent > SILENT:
        return "silent", f"nothing new for {roughly(silent)}"
    return "running", cut(run.disk_failing())


def _figures(
    description: RunDescription | None, known: RunAccounts, summary: Summary
) -> dict[str, object]:
    recent, traffic = known.recent_throughput(), summary.traffic
    return {
        "seconds": number(summary.seconds),
        "epochs": number(summary.epochs),
        "share": number(_share(description, summary)),
        "version": known.fleet.version,
        "quality": plain_quality(quality_of(summary.curve)),
        "device_throughput": number(recent.device),
        "server_throughput": number(recent.server),
        "reused_throughput": number(recent.reused),
        "useful_throughput": number(summary.useful_throughput),
        "up_bytes": traffic.up.total,
        "down_bytes": traffic.down.total,
        "memory_bytes": summary.memory.total.peak,
        "staleness": number(summary.staleness.mean),
        "refused": summary.staleness.refused,
        "late_batches": summary.balance.late_batches,
        "server_usage": asdict(summary.server_usage),
        "device_usage": asdict(summary.device_usage),
    }


def _share(description: RunDescription | None, summary: Summary) -> float | None:
    """Of the budget that is spent; None where the run has none that can be told from here."""
    stop = description.recipe.get("stop") if description else None
    if not isinstance(stop, dict):
        return None
    spent = [(summary.epochs, stop.get("epochs")), (summary.seconds / 3600, stop.get("hours"))]
    shares = [done / of for done, of in spent if of]
    return min(1.0, max(shares)) if shares else None


# ---- over time -----------------------------------------------------------------------------------


def _curve(summary: Summary) -> dict[str, object]:
    points = thinned(summary.curve)
    return {
        "seconds": [number(point.seconds) for point in points],
        "epochs": [number(point.epochs) for point in points],
        "accuracy": [number(point.accuracy) for point in points],
        "loss": [number(point.loss) for point in points],
        "metrics": {
            cut(name): [number(point.metrics.get(name)) for point in points]
            for name in shown_metrics(summary.curve)
        },
    }


def _speed(summary: Summary) -> dict[str, object]:
    stretches = thinned(summary.stretches)
    return {
        "seconds": [number(stretch.seconds) for stretch in stretches],
        "epochs": [number(stretch.epochs) for stretch in stretches],
        "device": [number(stretch.throughput.device) for stretch in stretches],
        "server": [number(stretch.throughput.server) for stretch in stretches],
        "reused": [number(stretch.throughput.reused) for stretch in stretches],
    }


def _queue(description: RunDescription | None, summary: Summary) -> dict[str, object]:
    level = summary.memory.queue
    return {
        "bin_seconds": level.bin_seconds,
        "bins": [number(value) for value in level.bins],
        "peak": level.peak,
        "mean": number(level.mean),
        "cap": description.activation_cap if description else None,
    }


# ---- the nodes -----------------------------------------------------------------------------------


def _server_row(known: RunAccounts, summary: Summary) -> dict[str, object]:
    fleet = known.fleet
    state = "waiting" if fleet.began is None else "over" if known.halt is not None else "leading"
    return {
        "name": SERVER,
        "state": state,
        "well": True,
        "version": fleet.version,
        "used": fleet.batches,
        "merged": sum(facts.merged for facts in fleet.devices.values()),
        "reused_batches": fleet.reused,
        "samples": summary.server_samples,
        **_usage(summary, SERVER),
    }


def _device_rows(known: RunAccounts, summary: Summary) -> list[dict[str, object]]:
    names = sorted(known.fleet.devices, key=in_order)
    return [_device_row(name, known.fleet.devices[name], known, summary) for name in names]


def _device_row(
    name: NodeId, facts: DeviceFacts, known: RunAccounts, summary: Summary
) -> dict[str, object]:
    join, now = facts.join, known.newest
    stale, given = summary.staleness.devices.get(name), summary.balance.devices.get(name)
    return {
        "name": name,
        "state": _doing(facts, known),
        "well": facts.here,
        "gflops": number(join.flops_per_second / 1e9) if join else None,
        "mbps": number(join.bytes_per_second * 8 / 1e6) if join else None,
        "split": _split(known.plan),
        "version": facts.version,
        "behind": None if facts.version is None else max(0, known.fleet.version - facts.version),
        "staleness": number(stale.mean) if stale else None,
        "refused": stale.refused if stale else 0,
        "used": facts.batches,
        "merged": facts.merged,
        "samples": given.device_samples if given else 0,
        "seen": round(max(0.0, now - facts.heard)),
        "error": facts.error,
        **_usage(summary, name),
    }


def _split(plan: Plan | None) -> str:
    """Blocks on the devices."""
    if plan is None:
        return ""
    return f"{plan.split} of {len(plan.blocks)}" if plan.server_blocks else "all"


def _doing(facts: DeviceFacts, known: RunAccounts) -> str:
    if facts.state is DeviceState.AWAY:
        return f"away for {roughly(known.newest - facts.since)}"
    return "done" if facts.here and known.halt is not None else facts.state.value


def _usage(summary: Summary, node: NodeId) -> dict[str, object]:
    """As it is: these are compared with the report's."""
    usage = summary.usage.get(node)
    if usage is None:
        return {}
    return asdict(usage)


def _notes(known: RunAccounts) -> list[dict[str, object]]:
    """The last first; times since the training began, below 0 before that."""
    began = known.fleet.began or math.inf
    latest = sorted(known.events.latest, key=lambda entry: -entry.at)
    return [{**asdict(each), "at": number(max(-1.0, each.at - began))} for each in latest]


# ---- small things --------------------------------------------------------------------------------


def _name_in(recipe: Mapping[str, object], part: str) -> str:
    table = recipe.get(part)
    return str(table.get("name", "")) if isinstance(table, dict) else ""


def in_order(name: str) -> tuple[list[int | str], str]:
    """device-2 before device-10."""
    parts: list[int | str] = []
    for text, number in re.findall(r"(\D*)(\d*)", name):
        parts += [text, int(number or -1)]
    return parts, name


def thinned(points: Sequence[T]) -> list[T]:
    """Every n-th, and always the last."""
    step = -(-len(points) // MOST_POINTS)
    return list(points) if step <= 1 else list(points[::-1][::step][::-1])


def number(value: float | None) -> float | None:
    """Six figures that count; what is not finite has no place in JSON."""
    if value is None or not math.isfinite(value):
        return None
    return value if isinstance(value, int) else float(f"{value:.6g}")
