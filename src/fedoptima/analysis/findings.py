"""Findings: what limited a run. Each sentence has a condition, and appears only where it holds.

Everything said here is in the trace. What would have been otherwise is not: that takes another run
(`fedoptima.prediction.advice`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fedoptima.analysis.curve import shown_metrics
from fedoptima.analysis.formatting import brief, counted, duration, listed, megabytes, percent
from fedoptima.analysis.influence import influence_warnings
from fedoptima.analysis.problems import in_words
from fedoptima.analysis.run_view import RunView
from fedoptima.analysis.spans import Kind
from fedoptima.core.stopping import ACCURACY, LOSS
from fedoptima.core.text import cut
from fedoptima.core.types import NodeId

WORTH_SAYING = 0.05  # of a node's time; less idle time than this is no limit
AT_ITS_LIMIT = 0.95  # busy for this share of its time
LINK_FULL = 0.9  # of a device's time in which it was sending
NEARLY_EMPTY = 1.0  # batches waiting, on average
NEARLY_FULL = 0.8  # of the cap
UNEVEN = 0.8  # Jain's index below this
NEVER_WAITS = 0.1  # of the longest wait for slower devices: who waits less is waited for


def describe(view: RunView) -> list[str]:
    """The whole summary of a run."""
    return [sentence for part in _PARTS for sentence in part(view)]


def outcome(view: RunView) -> Iterator[str]:
    summary = view.summary
    how = f"{counted(len(view.devices), 'device')}, {brief(summary.epochs)} epochs"
    how += f" in {duration(summary.seconds)}"
    accuracies = [p.accuracy for p in summary.curve if p.accuracy is not None]
    if accuracies:
        how += f", accuracy {percent(accuracies[-1])}"
        if max(accuracies) > accuracies[-1]:
            how += f" (best {percent(max(accuracies))})"
    if summary.curve:
        last = summary.curve[-1].metrics
        shown = [name for name in shown_metrics(summary.curve) if name in last]
        how += "".join(f", {cut(name)} {last[name]:.4g}" for name in shown)
    yield f"{view.method or 'The run'}: {how}."
    if view.description.dry:
        yield "This was a dry run: only the timing was simulated, nothing was trained."
    if view.halt is None:
        yield "The run has not ended; all figures are as of its last record."
    elif view.halt.failed:
        yield f"The run failed: {view.halt.reason}."


def pace(view: RunView) -> Iterator[str]:
    """Who is waited for at a barrier: those who hardly wait there themselves.

    They set the pace only if this is what the others wait for most.
    """
    usage = view.summary.usage
    shares = {node: usage[node].idle_2_share for node in view.devices if usage[node].span}
    mean = sum(shares.values()) / len(shares) if shares else 0.0
    if mean < WORTH_SAYING:
        return
    longest = max(shares.values())
    awaited = [node for node, share in shares.items() if share <= NEVER_WAITS * longest]
    waiting = [share for node, share in shares.items() if node not in awaited]
    lost = percent(sum(waiting) / len(waiting))
    mean_use = view.summary.device_usage
    if awaited and mean_use.idle_2 > mean_use.idle_1:
        yield (
            f"{listed(awaited)}{_speeds(view, awaited)} set the pace: the other devices spent "
            f"{lost} of their time waiting for slower ones (Type II)."
        )
    elif awaited:
        yield (
            f"The other devices spent {lost} of their time waiting for slower ones (Type II), "
            f"above all for {listed(awaited)}{_speeds(view, awaited)}."
        )
    else:
        yield (
            f"The devices spent {lost} of their time waiting for slower ones (Type II), each of "
            "them at times: none was always the last."
        )


def server(view: RunView) -> Iterator[str]:
    summary = view.summary
    use, queue, cap = summary.server_usage, summary.memory.queue, view.description.activation_cap
    if not use.span:
        return
    if use.reused:
        yield (
            f"The server was busy {percent(use.utilisation)} of its time with fresh batches, and "
            f"{percent(use.reused_share)} with batches that it had trained on before: "
            f"{summary.reused_samples:,} samples, beside {summary.server_samples:,} fresh ones."
        )
    if use.utilisation >= AT_ITS_LIMIT:
        said = f"The server was busy {percent(use.utilisation)} of its time: it was at its limit"
        full = cap is not None and queue.mean >= NEARLY_FULL * cap
        yield f"{said}, with {brief(queue.mean)} of {cap} batches waiting." if full else f"{said}."
    elif use.idle / use.span >= WORTH_SAYING:
        kind = "all Type I (waiting for the other side)"
        if use.idle_2:
            kind = f"{percent(use.idle_1_share)} Type I, {percent(use.idle_2_share)} Type II"
        said = f"The server was idle {percent(use.idle / use.span)} of its time, {kind}"
        if summary.server_samples and queue.mean < NEARLY_EMPTY:
            said += (
                f"; on average {brief(queue.mean)} activation batches were waiting, so it used "
                "what the devices sent as it came"
            )
        yield f"{said}."
        if not summary.server_samples:
            yield "With this method the server trains nothing: it only merges."


def devices(view: RunView) -> Iterator[str]:
    mean = view.summary.device_usage
    if not mean.span:
        return
    idle = mean.idle / mean.span
    if idle < WORTH_SAYING:
        yield f"The devices were busy {percent(mean.utilisation)} of their time."
        return
    usage = view.summary.usage
    present = [node for node in view.devices if usage[node].span]
    idlest = max(present, key=lambda node: usage[node].idle / usage[node].span)
    said = (
        f"The devices were idle {percent(idle)} of their time: {percent(mean.idle_1_share)} "
        f"waiting for the other side (Type I), {percent(mean.idle_2_share)} for slower devices "
        "(Type II)"
    )
    if len(present) > 1:
        share = percent(usage[idlest].idle / usage[idlest].span)
        said += f"; {idlest} most of all, {share}"
    yield f"{said}."


def links(view: RunView) -> Iterator[str]:
    """Only transfers that the trace has the beginning and the end of are in the timeline."""
    full = [node for node in view.devices if _sending_share(view, node) >= LINK_FULL]
    if full:
        yield (
            f"{listed(full)} had something on the way to the server for {100 * LINK_FULL:g} % of "
            "the time or more."
        )


def losses(view: RunView) -> Iterator[str]:
    stale, late = view.summary.staleness, view.summary.balance.late_batches
    if stale.refused:
        yield (
            f"{counted(stale.refused, 'update')} of {stale.merged + stale.refused:,} came too "
            f"late to be merged and were refused: {view.summary.refused_samples:,} samples that "
            "are in no epoch."
        )
    if late:
        batches = "batch" if late == 1 else "batches"
        yield f"{late:,} activation {batches} dropped: late, and no slot was free."


def evenness(view: RunView) -> Iterator[str]:
    balance = view.summary.balance
    if balance.batches_jain is None or balance.batches_jain >= UNEVEN:
        return
    used = {device: entry.batches for device, entry in balance.devices.items()}
    most, least = max(used, key=used.__getitem__), min(used, key=used.__getitem__)
    yield (
        f"The server trained unevenly (Jain's index {balance.batches_jain:.2f}): on "
        f"{used[most]:,} batches of {most}, and {used[least]:,} of {least}."
    )


def influence(view: RunView) -> Iterator[str]:
    yield from influence_warnings(view.summary.balance, view.method)


def estimates(view: RunView) -> Iterator[str]:
    formulas = view.plan.by_formula if view.plan is not None else {}
    for block, operations in formulas.items():
        yield (
            f"The work of {block} is an estimate: {listed(operations)} cannot be counted, and "
            "costs one FLOP for each element written."
        )


def absences(view: RunView) -> Iterator[str]:
    away = {node: _seconds(view, node, Kind.AWAY) for node in view.devices}
    gone = [node for node, seconds in away.items() if seconds > 0]
    if gone:
        total = duration(sum(away.values()))
        each = "was away" if len(gone) == 1 else "were away at times"
        yield f"{listed(gone)} {each}, {total} in all."
    yield from in_words(view.summary.problems)


def doubts(view: RunView) -> Iterator[str]:
    for note in view.doubts:
        yield f"{note.about}: {note.kind}: {note.text}."


_PARTS = (
    *(outcome, pace, server, devices, links, losses, evenness),
    *(influence, estimates, absences, doubts),
)


# ---- several runs ------------------------------------------------------------------------------


def compare(views: Sequence[RunView]) -> list[str]:
    """What can be said of runs side by side. One alone is compared with nothing."""
    if len(views) < 2:
        return []
    return [*_first_there(views), *_idle_times(views), *_memories(views)]


def _first_there(views: Sequence[RunView]) -> Iterator[str]:
    """The accuracy that all came to, and when each first did; the loss, where there is none."""
    name, curves = ACCURACY, _measured(views, ACCURACY)
    if not any(curves.values()):
        name, curves = LOSS, _measured(views, LOSS, sign=-1)  # less of it is better
    if not all(curves.values()):
        return

    def worded(value: float) -> str:
        return percent(value) if name == ACCURACY else brief(-value)

    common = min(max(value for _, value in curve) for curve in curves.values())
    times = {
        label: next(seconds for seconds, value in curve if value >= common)
        for label, curve in curves.items()
    }
    first, last = min(times, key=times.__getitem__), max(times, key=times.__getitem__)
    reached = f"{worded(common)} accuracy" if name == ACCURACY else f"a loss of {worded(common)}"
    if duration(times[first]) != duration(times[last]):
        yield (
            f"Every run came to {reached}: {first} first, after "
            f"{duration(times[first])}; {last} last, after {duration(times[last])}."
        )
    best = {label: max(value for _, value in curve) for label, curve in curves.items()}
    top = max(best, key=best.__getitem__)
    if best[top] > common:
        yield f"The best {name} is that of {top}, {worded(best[top])}."


def _measured(
    views: Sequence[RunView], name: str, sign: int = 1
) -> dict[str, list[tuple[float, float]]]:
    """Of each run: seconds, and the figure at that time."""
    return {
        view.label: [
            (point.seconds, sign * value)
            for point in view.summary.curve
            if (value := getattr(point, name)) is not None
        ]
        for view in views
    }


def _idle_times(views: Sequence[RunView]) -> Iterator[str]:
    for who, usage in (
        ("server", {v.label: v.summary.server_usage for v in views}),
        ("mean device", {v.label: v.summary.device_usage for v in views}),
    ):
        shares = {label: use.idle / use.span for label, use in usage.items() if use.span}
        if len(shares) < 2:
            continue
        least, most = min(shares, key=shares.__getitem__), max(shares, key=shares.__getitem__)
        low, high = percent(shares[least]), percent(shares[most])
        if low != high:  # as they are shown
            yield (
                f"The {who} was idle least with {least} ({low} of its time), most with {most} "
                f"({high})."
            )


def _memories(views: Sequence[RunView]) -> Iterator[str]:
    peaks = {view.label: view.summary.memory.total.peak for view in views}
    least, most = min(peaks, key=peaks.__getitem__), max(peaks, key=peaks.__getitem__)
    low, high = megabytes(peaks[least]), megabytes(peaks[most])
    if low != high:
        yield f"The server held least with {least} ({low} at the peak), most with {most} ({high})."


# ---- facts -------------------------------------------------------------------------------------


def _speeds(view: RunView, nodes: Sequence[NodeId]) -> str:
    """As the devices have reported them."""
    speeds = [view.joins[node].flops_per_second / 1e9 for node in nodes if node in view.joins]
    if not speeds:
        return ""
    low, high = brief(min(speeds)), brief(max(speeds))
    return f" ({low} GFLOP/s)" if low == high else f" ({low} to {high} GFLOP/s)"


def _seconds(view: RunView, node: NodeId, *kinds: Kind) -> float:
    lane = view.timeline.lanes.get(node)
    if lane is None:
        return 0.0
    return view.timeline.bin_seconds * sum(sum(lane.shares.get(kind, ())) for kind in kinds)


def _sending_share(view: RunView, node: NodeId) -> float:
    """Of the time in which the node took part."""
    present = view.summary.usage[node].span
    return _seconds(view, node, Kind.SEND) / present if present else 0.0
