"""What a device does inside one round of H iterations. One class per family of methods.

A program turns facts into orders: jobs for the engine (one at a time) and messages to the server.
Steps are numbered across all incarnations of a device: a step's number determines its data.
"""

from __future__ import annotations

from collections import deque
from typing import ClassVar, Protocol

from fedoptima.core.errors import InvariantBroken, ProtocolViolation
from fedoptima.core.jobs import AuxiliaryStep, Backward, Forward, FullStep, Job, SkipStep
from fedoptima.core.messages import ActivationBatch, GradientBatch, ProgramSpec
from fedoptima.core.types import Payload

Order = Job | ActivationBatch


class Program(Protocol):
    needs_gradient: ClassVar[bool]  # does the server answer each activation batch?
    step: int  # the next iteration's number

    def start(self, iterations: int) -> list[Order]: ...
    def done(self, job: Job, result: Payload, *, sender_on: bool) -> list[Order]: ...
    def gradient(self, message: GradientBatch) -> list[Order]: ...
    def kept(self) -> ActivationBatch | None:
        """A batch that waits for a credit, to be sent now."""

    @property
    def finished(self) -> bool: ...


def build_program(spec: ProgramSpec, step: int) -> Program:
    match spec.kind:
        case "full":
            return FullModel(step)
        case "auxiliary":
            # A server of an earlier version does not say: 0 is how that is read.
            return AuxiliaryLoss(step, max(1, spec.train_every), spec.cut)
        case "gradient":
            return ServerGradient(step, spec.micro_batches)
    raise ProtocolViolation(f"unknown program {spec.kind!r}: server and device differ in version")


class Iterations:
    """Steps are numbered on; ``_left`` of them belong to this round."""

    needs_gradient: ClassVar[bool] = False

    def __init__(self, step: int) -> None:
        self.step = step
        self._left = 0

    @property
    def finished(self) -> bool:
        return self._left == 0

    def kept(self) -> ActivationBatch | None:
        return None

    def _end_step(self) -> None:
        self._left -= 1
        self.step += 1


class FullModel(Iterations):
    """Classic FL: the whole network is on the device."""

    def start(self, iterations: int) -> list[Order]:
        self._left = iterations
        return [FullStep(self.step)]

    def done(self, job: Job, result: Payload, *, sender_on: bool) -> list[Order]:
        self._end_step()
        return [] if self.finished else [FullStep(self.step)]

    def gradient(self, message: GradientBatch) -> list[Order]:
        raise ProtocolViolation("the server sent a gradient to a device that trains alone")


class AuxiliaryLoss(Iterations):
    """FedOptima: send the activations, then learn from the auxiliary network's own loss (Alg. 1).

    The activations go out before the auxiliary step, so the transfer overlaps the computation.

    A lean device (``train_every`` = n above 1) trains on at least one of n batches in a row, and on
    the first of a round; the others it only sends. It keeps up to n - 1 batches that wait for a
    credit, so that the link is busy while it trains, and trains on what it cannot keep: no batch is
    computed for nothing (docs/decisions/0035).
    """

    train_every = 1  # these are here, because checkpoints of earlier versions do not have them
    _skipped = 0
    cut = 0

    def __init__(self, step: int, train_every: int = 1, cut: int = 0) -> None:
        super().__init__(step)
        self.train_every = train_every
        self.cut = cut  # of this device alone; 0: of all
        self._skipped = 0  # batches since the last one that was trained on
        self._kept: deque[ActivationBatch] = deque()

    def start(self, iterations: int) -> list[Order]:
        self._left = iterations
        self._skipped = self.train_every - 1
        return [Forward(self.step)]

    def done(self, job: Job, result: Payload, *, sender_on: bool) -> list[Order]:
        match job:
            case Forward(seq):
                batch = ActivationBatch(seq, result, cut=self.cut)
                lean = self.train_every > 1
                keep = lean and not sender_on and len(self._kept) < self.train_every - 1
                if keep:
                    self._kept.append(batch)
                train = self._skipped + 1 >= self.train_every or not (sender_on or keep)
                offer: list[Order] = [batch] if sender_on else []
                return [*offer, AuxiliaryStep(seq) if train else SkipStep(seq)]
            case AuxiliaryStep() | SkipStep():
                self._skipped = self._skipped + 1 if isinstance(job, SkipStep) else 0
                self._end_step()
                return [] if self.finished else [Forward(self.step)]
        raise InvariantBroken(f"the auxiliary program did not ask for {job}")

    def kept(self) -> ActivationBatch | None:
        return self._kept.popleft() if self.train_every > 1 and self._kept else None

    def gradient(self, message: GradientBatch) -> list[Order]:
        raise ProtocolViolation("the server sent a gradient to a device with its own loss")


class ServerGradient(Iterations):
    """SplitFed and OAFL (one part), PiPar (n parts): learn from the server's gradient.

    A mini-batch is cut into parts that are in flight together: all their forward passes come
    first, so that the uplink never waits for a backward pass; then their backward passes, as
    gradients come. Gradients accumulate and the step is taken with the last one. A step per part
    would change weights under a forward pass whose backward pass is still to come
    (docs/decisions/0013).
    """

    needs_gradient: ClassVar[bool] = True

    def __init__(self, step: int, parts: int = 1) -> None:
        super().__init__(step)
        self.parts = parts
        self._forwarded = 0  # parts of this mini-batch: forward pass ordered,
        self._sent = 0  # sent to the server,
        self._answered = 0  # answered by it,
        self._returned = 0  # through their backward pass
        self._gradients: deque[GradientBatch] = deque()
        self._busy = False

    def start(self, iterations: int) -> list[Order]:
        self._left = iterations
        return self._next()

    def done(self, job: Job, result: Payload, *, sender_on: bool) -> list[Order]:
        self._busy = False
        match job:
            case Forward(seq, part, parts):
                self._sent += 1
                return [ActivationBatch(seq, result, part, parts), *self._next()]
            case Backward():
                self._returned += 1
                if self._returned == self.parts:
                    self._forwarded = self._sent = self._answered = self._returned = 0
                    self._end_step()
                return self._next()
        raise InvariantBroken(f"the gradient program did not ask for {job}")

    def gradient(self, message: GradientBatch) -> list[Order]:
        expected = (self.step, self._answered)  # answers come in the order of the questions
        if self._answered == self._sent or (message.seq, message.part) != expected:
            raise ProtocolViolation(f"the server sent an unexpected gradient: {message}")
        self._answered += 1
        self._gradients.append(message)
        return self._next()

    def _next(self) -> list[Order]:
        if self._busy or self.finished:
            return []
        job: Job
        if self._forwarded < self.parts:  # fill the pipeline before draining it
            job = Forward(self.step, self._forwarded, self.parts)
            self._forwarded += 1
        elif self._gradients:
            message = self._gradients.popleft()
            last = self._returned + 1 == self.parts
            job = Backward(message.seq, message.part, message.data, last, self.parts)
        else:
            return []
        self._busy = True
        return [job]
