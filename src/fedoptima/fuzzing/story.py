"""What happened in a script, told line by line."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fedoptima.core.effects import (
    Drop,
    Effect,
    Evaluate,
    Fold,
    Halt,
    Note,
    Run,
    Send,
    SetTimer,
)
from fedoptima.core.events import Connected, Disconnected, JobDone, JobFailed, Received, TimerFired
from fedoptima.core.jobs import Job, Merge, ReusedStep, ServerStep
from fedoptima.core.messages import (
    ActivationBatch,
    GlobalModel,
    GradientBatch,
    Join,
    Message,
    ModelUpdate,
)
from fedoptima.core.types import NodeId
from fedoptima.fuzzing.script import Fault, Script


@dataclass(frozen=True, slots=True)
class Line:
    at: float
    node: NodeId
    text: str
    fault: bool = False

    def __str__(self) -> str:
        mark = "!" if self.fault else " "
        return f"{self.at:9.3f} {mark} {self.node:<7} {self.text}"


class Story:
    """Is told everything by a `World`."""

    def __init__(self) -> None:
        self.lines: list[Line] = []

    def told(self, at: float, node: NodeId, what: object, effects: list[Effect]) -> None:
        if isinstance(what, Fault):
            self.lines.append(Line(at, node, str(what), fault=True))
            return
        answers = "; ".join(_effect(effect) for effect in effects)
        text = f"{_event(what)}{f' -> {answers}' if answers else ''}"
        self.lines.append(Line(at, node, text))


def introduction(script: Script) -> Iterator[str]:
    options = ", ".join(f"{key} = {value!r}" for key, value in script.options.items())
    yield f"{script.method}{f' with {options}' if options else ''}"
    for device in script.devices:
        late = f", from {device.joins_at:g} s on" if device.joins_at else ""
        yield (
            f"{device.name}: speed {device.speed:g}, {device.bytes_per_second:,.0f} bytes/s, "
            f"{device.latency:g} s of latency, {device.samples} samples{late}"
        )
    yield f"server: speed {script.server_speed:g}"


def _event(event: object) -> str:
    match event:
        case Received(sender, session, message):
            return f"{sender}/{session} says {_message(message)}"
        case Connected(peer, session):
            return f"connected to {peer}, session {session}"
        case Disconnected(peer, session):
            return f"session {session} with {peer} is over"
        case JobDone(ticket, job):
            return f"job {ticket} done: {_job(job)}"
        case JobFailed(ticket, job):
            return f"job {ticket} failed: {_job(job)}"
        case TimerFired(key):
            return f"timer {key!r}"
    return str(event)


def _effect(effect: Effect) -> str:
    match effect:
        case Send(to, session, message):
            return f"to {to}/{session}: {_message(message)}"
        case Run(ticket, job):
            return f"run {ticket}: {_job(job)}"
        case SetTimer(key, at):
            return f"timer {key!r} at {at:.3f}"
        case Note(kind, about, text):
            return f"note: {about} {kind}{f' ({text})' if text else ''}"
        case Fold(part):
            return f"add up {part.data.id}"
        case Evaluate(index):
            return f"evaluate ({index})"
        case Drop(peer):
            return f"drop {peer}"
        case Halt(reason):
            return f"the end: {reason}"


def _message(message: Message) -> str:
    match message:
        case ModelUpdate(version, trained, data):
            return f"ModelUpdate {data.id} (version {version}, {trained} samples)"
        case GlobalModel(version, _, data):
            return f"GlobalModel {data.id} (version {version})"
        case ActivationBatch(seq, _, part):
            return f"ActivationBatch {seq}.{part}"
        case GradientBatch(seq, part):
            return f"GradientBatch {seq}.{part}"
        case Join():
            work = "training" if message.training else f"pending {message.pending}"
            return f"Join (version {message.version}, {work if message.has_work else 'no work'})"
    return type(message).__name__


def _job(job: Job) -> str:
    match job:
        case Merge(parts=parts):
            return "Merge " + ", ".join(part.data.id for part in parts)
        case ReusedStep(origin, _, seq, use=use):
            return f"ReusedStep on {origin}'s {seq}, use {use}"
        case ServerStep(origin, _, seq, _, part=part):
            return f"ServerStep on {origin}'s {seq}.{part}"
    step = getattr(job, "seq", None)
    return type(job).__name__ + (f" {step}" if step is not None else "")
