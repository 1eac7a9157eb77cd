"""The run's course: accuracy, and samples trained, over time and epochs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from fedoptima.analysis.formatting import brief
from fedoptima.core.effects import Evaluate
from fedoptima.core.events import Evaluated, JobDone
from fedoptima.core.jobs import PlanRun, ReusedStep, SkipStep
from fedoptima.core.stopping import OF_DEVICE
from fedoptima.core.types import SERVER, NodeId
from fedoptima.trace.record import Record

USUAL = ("accuracy", "loss")


@dataclass(frozen=True, slots=True)
class Point:
    """One evaluation."""

    seconds: float
    epochs: float
    version: int
    device_samples: int
    server_samples: int
    accuracy: float | None
    loss: float | None
    metrics: Mapping[str, float] = field(default_factory=dict)  # all of them, by name
    reused_samples: int = 0  # that the server has trained on again

    @property
    def others(self) -> dict[str, float]:
        """Besides accuracy and loss."""
        return {
            name: value
            for name, value in self.metrics.items()
            if name not in USUAL and OF_DEVICE not in name
        }

    @property
    def in_words(self) -> str:
        """What is shown beside the accuracy; where there is none, the loss, too."""
        instead = {"loss": self.loss} if self.accuracy is None and self.loss is not None else {}
        return ", ".join(f"{name} {brief(v)}" for name, v in {**self.others, **instead}.items())

    @property
    def devices(self) -> dict[NodeId, dict[str, float]]:
        """Figures of each device on its own held-out data."""
        found: dict[NodeId, dict[str, float]] = {}
        for name, value in self.metrics.items():
            figure, sign, device = name.partition(OF_DEVICE)
            if sign:
                found.setdefault(NodeId(device), {})[figure] = value
        return found


@dataclass(frozen=True, slots=True)
class Throughput:
    """Samples trained on per second of the run; the two sides are never added up."""

    device: float  # all devices together
    server: float  # each batch once
    reused: float = 0.0  # on the server, again


class CourseAccount:
    """Feed it every record, in order."""

    def __init__(self) -> None:
        self.points: list[Point] = []
        self.device_samples = 0
        self.server_samples = 0
        self.forwarded_samples = 0  # by devices that did not train on them
        self.reused_samples = 0
        self.began = 0.0  # of training
        self._begun = False
        self.now = 0.0
        self._asked: dict[int, Evaluate] = {}

    @property
    def processed_samples(self) -> int:
        """By devices, whether they trained on them or not."""
        return self.device_samples + self.forwarded_samples

    @property
    def epochs(self) -> float:
        return self.points[-1].epochs if self.points else 0.0

    @property
    def seconds(self) -> float:
        return max(0.0, self.now - self.began)

    def seconds_at(self, now: float) -> float:
        """Of training, at a time of the run's clock, which begins when devices are waited for."""
        return max(0.0, now - self.began) if self._begun else 0.0

    def observe(self, record: Record) -> None:
        self.now = record.at
        event = record.event
        if record.node != SERVER:
            if isinstance(event, JobDone):
                if isinstance(event.job, SkipStep):
                    self.forwarded_samples += event.samples
                else:
                    self.device_samples += event.samples
            return
        match event:
            case JobDone():
                if isinstance(event.job, ReusedStep):
                    self.reused_samples += event.samples
                else:
                    self.server_samples += event.samples
                if isinstance(event.job, PlanRun):
                    self.began, self._begun = record.at, True
            case Evaluated():
                self._evaluated(event, record.at)
        for effect in record.effects:
            if isinstance(effect, Evaluate):
                self._asked[effect.index] = effect

    def _evaluated(self, event: Evaluated, now: float) -> None:
        asked, metrics = self._asked.pop(event.index, None), dict(event.metrics)
        if asked is None:  # in a file that somebody has changed
            return
        self.points.append(
            Point(
                now - self.began,
                asked.epochs,
                asked.version,
                self.device_samples,
                self.server_samples,
                metrics.get("accuracy"),
                metrics.get("loss"),
                metrics,
                self.reused_samples,
            )
        )


def with_device_samples(
    points: Iterable[Point], began: float, records: Iterable[Record]
) -> Iterator[Point]:
    """The points of a server's own records, with what devices had trained on until each of them.

    ``began``: the training. ``records``: all nodes', by time; the server's may have gaps.
    """
    course, coming = CourseAccount(), iter(records)
    record = next(coming, None)
    for point in points:
        while record is not None and record.at < began + point.seconds:
            course.observe(record)
            record = next(coming, None)
        yield replace(point, device_samples=course.device_samples)


def other_metrics(points: Iterable[Point]) -> list[str]:
    """The names of the metrics besides accuracy and loss, in the order of the task."""
    return list(dict.fromkeys(name for point in points for name in point.others))


def shown_metrics(points: Sequence[Point]) -> list[str]:
    """Those that are drawn beside the accuracy; where there is none, the loss is."""
    others = other_metrics(points)
    losses = any(point.loss is not None for point in points)
    accuracies = any(point.accuracy is not None for point in points)
    return ["loss", *others] if losses and not accuracies else others


def throughput(
    device_samples: int, server_samples: int, seconds: float, reused_samples: int = 0
) -> Throughput:
    if seconds <= 0:
        return Throughput(0.0, 0.0)
    return Throughput(device_samples / seconds, server_samples / seconds, reused_samples / seconds)


START = Point(0.0, 0.0, 0, 0, 0, None, None)


def throughput_between(before: Point, after: Point) -> Throughput:
    return throughput(
        after.device_samples - before.device_samples,
        after.server_samples - before.server_samples,
        after.seconds - before.seconds,
        after.reused_samples - before.reused_samples,
    )
