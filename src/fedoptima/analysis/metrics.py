"""What is measured of a run, by name and unit: for exporters, which only pass it on.

Every number is one of `Accounts`'; nothing is counted here. A name that ends in ``_total`` is a
counter and never falls. Idle time by type is not one: time at a barrier is Type I until the merge
shows that it was Type II, and then moves over.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise

from fedoptima.analysis.curve import START, Point, throughput_between
from fedoptima.analysis.summary import Summary
from fedoptima.core.types import SERVER, NodeId

# The same at every moment: a bucket that came later would look like a jump. Both are the accounts'
# own, by powers of two; what is above the last one only counts as "more".
STALENESS_BOUNDS = tuple(2.0**place - 1 for place in range(9))  # versions: 0, 1, 3 ... 255
AGE_BOUNDS = tuple(2.0**place / 1000 for place in range(18))  # seconds: 1 ms ... 131 s

Labels = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Moment:
    """A run at one moment. Nothing in it changes any more."""

    summary: Summary
    members: Collection[NodeId]  # devices that take part now
    cap: int | None  # omega; None: the method's queue has none
    failing: Collection[NodeId] = ()  # nodes that cannot write what they should


@dataclass(frozen=True, slots=True)
class Metric:
    name: str
    help: str
    labels: Labels  # their names
    values: Mapping[Labels, float]


@dataclass(frozen=True, slots=True)
class Distribution:
    name: str
    help: str
    bounds: tuple[float, ...]
    counts: tuple[int, ...]  # up to each bound and above the one before; the last: above all
    total: float  # of the values


def metrics(moment: Moment) -> Iterator[Metric]:
    """At every moment the same, but for figures that a run does not have (yet)."""
    yield from _course(moment.summary)
    yield from _nodes(moment.summary)
    yield from _server(moment)
    yield from _devices(moment)


def distributions(moment: Moment) -> Iterator[Distribution]:
    staleness = moment.summary.staleness
    yield Distribution(
        "fedoptima_device_staleness_versions",
        "How many versions behind devices' updates were when they were merged.",
        STALENESS_BOUNDS,
        _in_buckets([device.histogram for device in staleness.devices.values()], STALENESS_BOUNDS),
        round(staleness.mean * staleness.merged),
    )
    ages = staleness.activation_ages
    yield Distribution(
        "fedoptima_activation_age_seconds",
        "From an activation batch's arrival at the server to its use.",
        AGE_BOUNDS,
        _in_buckets([ages], AGE_BOUNDS),
        staleness.activation_age_mean * sum(ages),
    )


def _in_buckets(histograms: Sequence[Sequence[int]], bounds: Sequence[float]) -> tuple[int, ...]:
    counts = [0] * (len(bounds) + 1)
    for histogram in histograms:
        for place, count in enumerate(histogram):
            counts[min(place, len(bounds))] += count
    return tuple(counts)


def _figures(figures: Mapping[str, tuple[str, float | None]]) -> Iterator[Metric]:
    """Without labels. None: the run has no such figure, or not yet."""
    for name, (text, value) in figures.items():
        if value is not None:
            yield Metric(f"fedoptima_{name}", text, (), {(): value})


def _course(summary: Summary) -> Iterator[Metric]:
    last = summary.curve[-1] if summary.curve else START
    clock = "Training so far on the run's clock, which is virtual in a simulation."
    yield from _figures(
        {
            "run_seconds_total": (clock, summary.seconds),
            "epochs_total": ("Passes over the devices' data, as settled.", summary.epochs),
            "evaluations_total": ("How often the model was evaluated.", len(summary.curve)),
            "accuracy_ratio": ("Accuracy at the last evaluation, 0 to 1.", last.accuracy),
            "loss": ("Loss at the last evaluation.", last.loss),
        }
    )
    if last.others:
        yield Metric(
            "fedoptima_metric",
            "The task's other metrics at the last evaluation.",
            ("metric",),
            {(name,): value for name, value in last.others.items()},
        )
    yield Metric(
        "fedoptima_samples_total",
        "Samples trained on, by each side.",
        ("side",),
        {("device",): summary.device_samples, ("server",): summary.server_samples},
    )


def _nodes(summary: Summary) -> Iterator[Metric]:
    usage = summary.usage
    yield Metric(
        "fedoptima_node_busy_seconds_total",
        "Time in which the node's engine worked, on the run's clock; without reused batches.",
        ("node",),
        {(node,): use.busy for node, use in usage.items()},
    )
    yield Metric(
        "fedoptima_node_reused_seconds_total",
        "Time in which the node trained again on batches; it is in neither busy nor idle time.",
        ("node",),
        {(node,): use.reused for node, use in usage.items()},
    )
    yield Metric(
        "fedoptima_node_idle_seconds",
        "Time idle so far: type 1 waiting for the other side, 2 waiting for slower devices.",
        ("node", "type"),
        {
            (node, kind): seconds
            for node, use in usage.items()
            for kind, seconds in (("1", use.idle_1), ("2", use.idle_2))
        },
    )


def _server(moment: Moment) -> Iterator[Metric]:
    summary, stale, held = moment.summary, moment.summary.staleness, moment.summary.memory
    refused = "Devices' updates that came too late, or of a model that a restart undid."
    samples = "Samples that those were trained on: they count towards no epoch."
    used = "Samples that went through the whole network and were used."
    reused = "Samples that the server trained on again, while it had nothing else to do."
    wasted = "Samples that devices trained on for updates that were refused or lost."
    forwarded = "Samples that devices sent without training on them."
    late = "Activation batches dropped: late, and no slot was free."
    queue = "Activation batches that wait at the server."
    cap = "Most activation batches that may wait or be on their way (omega)."
    memory = "Models, activation batches and updates that the server holds."
    yield from _figures(
        {
            "merges_total": ("Versions of the global model.", summary.versions),
            "updates_merged_total": ("Devices' updates merged.", stale.merged),
            "updates_refused_total": (refused, stale.refused),
            "samples_refused_total": (samples, summary.refused_samples),
            "samples_used_total": (used, summary.work.used),
            "samples_reused_total": (reused, summary.reused_samples),
            "samples_wasted_total": (wasted, summary.work.wasted),
            "samples_forwarded_total": (forwarded, summary.forwarded_samples),
            "late_batches_total": (late, summary.balance.late_batches),
            "activation_queue_batches": (queue, held.queue.last),
            "activation_cap_batches": (cap, moment.cap),
            "server_memory_bytes": (memory, held.total.last),
        }
    )
    yield Metric(
        "fedoptima_bytes_total",
        "Bytes that passed the server: up is from devices, down is to them.",
        ("direction", "kind"),
        {
            (direction, kind): nbytes
            for direction, volume in asdict(summary.traffic).items()
            for kind, nbytes in volume.items()
        },
    )


def _devices(moment: Moment) -> Iterator[Metric]:
    given = moment.summary.balance.devices
    yield Metric(
        "fedoptima_device_up",
        "1 while the device takes part, 0 while it is away.",
        ("device",),
        {(device,): device in moment.members for device in sorted({*given, *moment.members})},
    )
    yield Metric(
        "fedoptima_disk_failing",
        "1 while the node cannot write to its disk; training continues.",
        ("node",),
        {(node,): node in moment.failing for node in sorted({SERVER, *given, *moment.members})},
    )
    for name, text, figure in (
        (
            "batches_used",
            "Activation batches of the device that the server has trained on.",
            "batches",
        ),
        (
            "batches_reused",
            "How often the server has trained again on batches of the device.",
            "reused_batches",
        ),
        ("samples", "Samples that the device has trained on.", "device_samples"),
        ("updates_merged", "Updates of the device that were merged.", "updates"),
    ):
        values: dict[Labels, float] = {
            (device,): getattr(share, figure) for device, share in given.items()
        }
        yield Metric(f"fedoptima_device_{name}_total", text, ("device",), values)


# ---- one row per evaluation, for experiment trackers ---------------------------------------------


def evaluations(curve: Sequence[Point]) -> Iterator[dict[str, float]]:
    """The figures of each evaluation; throughput is since the one before."""
    for before, point in pairwise((START, *curve)):
        speed = throughput_between(before, point)
        figures = {
            "accuracy": point.accuracy,
            "loss": point.loss,
            "epochs": point.epochs,
            "seconds": point.seconds,
            "versions": float(point.version),
            "throughput/device_samples_per_second": speed.device,
            "throughput/server_samples_per_second": speed.server,
            "throughput/reused_samples_per_second": speed.reused,
            **point.others,
        }
        yield {name: value for name, value in figures.items() if value is not None}


def condition(summary: Summary) -> dict[str, float]:
    """Where the time has gone so far, and how full the queue is."""
    server, devices = summary.server_usage, summary.device_usage
    return {
        "idle/server_type_1_ratio": server.idle_1_share,
        "idle/server_type_2_ratio": server.idle_2_share,
        "idle/devices_type_1_ratio": devices.idle_1_share,
        "idle/devices_type_2_ratio": devices.idle_2_share,
        "busy/server_ratio": server.utilisation,
        "busy/server_reused_ratio": server.reused_share,
        "server/queue_batches": summary.memory.queue.last,
        "server/memory_bytes": summary.memory.total.last,
    }
