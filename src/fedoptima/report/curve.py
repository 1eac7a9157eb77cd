"""The run's course: accuracy over time and epochs, samples trained, bytes moved, refusals."""

from __future__ import annotations

from dataclasses import dataclass

from fedoptima.core.effects import Evaluate, Note, Send
from fedoptima.core.events import Evaluated, JobDone, Received
from fedoptima.core.jobs import PlanRun, ServerStep
from fedoptima.core.messages import nbytes
from fedoptima.core.types import SERVER
from fedoptima.trace.record import Record


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


class CourseAccount:
    """Feed it every record, in order."""

    def __init__(self) -> None:
        self.points: list[Point] = []
        self.device_samples = 0
        self.server_samples = 0
        self.bytes_up = 0  # arrived at the server
        self.bytes_down = 0  # sent by it
        self.refused = 0
        self.late_batches = 0
        self.began = 0.0
        self.now = 0.0
        self._asked: dict[int, Evaluate] = {}

    @property
    def epochs(self) -> float:
        return self.points[-1].epochs if self.points else 0.0

    def observe(self, record: Record) -> None:
        self.now = record.at
        match record.event:
            case JobDone(job=PlanRun()):
                self.began = record.at
            case JobDone(job=ServerStep(), samples=samples):
                self.server_samples += samples
            case JobDone(samples=samples) if record.node != SERVER:
                self.device_samples += samples
            case Received(_, _, message) if record.node == SERVER:
                self.bytes_up += nbytes(message)
            case Evaluated(index, metrics):
                self._evaluated(self._asked.pop(index), dict(metrics), record.at)
        for effect in record.effects:
            match effect:
                case Send(message=message) if record.node == SERVER:
                    self.bytes_down += nbytes(message)
                case Evaluate(index=index):
                    self._asked[index] = effect
                case Note("update refused"):
                    self.refused += 1
                case Note("late batch dropped"):
                    self.late_batches += 1

    def _evaluated(self, asked: Evaluate, metrics: dict[str, float], now: float) -> None:
        self.points.append(
            Point(
                now - self.began,
                asked.epochs,
                asked.version,
                self.device_samples,
                self.server_samples,
                metrics.get("accuracy"),
                metrics.get("loss"),
            )
        )
