"""What a device does inside one round of H iterations. One class per family of methods.

A program turns facts into orders: jobs for the engine (one at a time) and messages to the server.
Steps are numbered across all incarnations of a device: a step's number determines its data.
"""

from __future__ import annotations

from collections import deque
from typing import ClassVar, Protocol

from fedoptima.core.errors import InvariantBroken, ProtocolViolation
from fedoptima.core.jobs import AuxiliaryStep, Backward, Forward, FullStep, Job
from fedoptima.core.messages import ActivationBatch, GradientBatch, ProgramSpec
from fedoptima.core.types import Payload

Order = Job | ActivationBatch


class Program(Protocol):
    needs_gradient: ClassVar[bool]  # does the server answer each activation batch?
    step: int  # the next iteration's number

    def start(self, iterations: int) -> list[Order]: ...
    def done(self, job: Job, result: Payload, *, sender_on: bool) -> list[Order]: ...
    def gradient(self, message: GradientBatch) -> list[Order]: ...
    @property
    def finished(self) -> bool: ...


def build_program(spec: ProgramSpec, step: int) -> Program:
    match spec.kind:
        case "full":
            return FullModel(step)
        case "auxiliary":
            return AuxiliaryLoss(step)
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
    """

    def start(self, iterations: int) -> list[Order]:
        self._left = iterations
        return [Forward(self.step)]

    def done(self, job: Job, result: Payload, *, sender_on: bool) -> list[Order]:
        match job:
            case Forward(seq):
                offer: list[Order] = [ActivationBatch(seq, result)] if sender_on else []
                return [*offer, AuxiliaryStep(seq)]
            case AuxiliaryStep():
                self._end_step()
                return [] if self.finished else [Forward(self.step)]
        raise InvariantBroken(f"the auxiliary program did not ask for {job}")

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
