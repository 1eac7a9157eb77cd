"""A simulation refuses what a node would refuse over the network.

The form of a device's message is checked when it arrives. Its values are not waited for: a batch
with bad ones trains nothing, and the device is told when its next update arrives, or at the next
evaluation. An update is inspected when it is sent, so that little is left to do on its arrival.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fedoptima.core.errors import NotFinite, ProtocolViolation, TrainingDiverged, describe
from fedoptima.core.events import Received, Rejected
from fedoptima.core.machine import rejected
from fedoptima.core.messages import Failed, Message, ModelUpdate
from fedoptima.core.types import SERVER, NodeId, PayloadId
from fedoptima.sim.executor import Executor, Inspection, LateFailure
from fedoptima.sim.state import EnvelopeArrives

Verdict = tuple[str, bool, bool]  # what is wrong; with the device's loss; not finite
Inspected = Mapping[NodeId, Mapping[PayloadId, Verdict]]


class Admission:
    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._begun: dict[NodeId, dict[PayloadId, Inspection]] = {}

    def sent(self, device: NodeId, message: Message) -> None:
        """A message is on its way to the server."""
        if isinstance(message, ModelUpdate):
            inspection = self._executor.inspect(device, message)
            if inspection is not None:
                self._begun.setdefault(device, {})[message.data.id] = inspection

    def lost(self, device: NodeId) -> None:
        """Messages in transit from this device do not arrive."""
        self._begun.pop(device, None)

    def judge(self, arrived: EnvelopeArrives) -> Received | Rejected:
        device, message = arrived.device, arrived.envelope.message
        session = arrived.envelope.session
        if not arrived.upward:
            return Received(SERVER, session, message)
        try:
            self._executor.admit(message)
            if isinstance(message, ModelUpdate):
                inspection = self._begun.get(device, {}).pop(message.data.id, None)
                if inspection is not None:
                    inspection.check()
        except TrainingDiverged as error:  # over the network the device finds it out by itself
            return Received(device, session, Failed(describe(error), diverged=True))
        except LateFailure as error:
            return Received(device, session, Failed(str(error), diverged=error.diverged))
        except ProtocolViolation as error:
            return rejected(device, session, error)
        return Received(device, session, message)

    # ---- checkpoint --------------------------------------------------------------------------

    def save(self) -> Inspected:
        """What the inspections of updates in transit will say."""
        found: dict[NodeId, dict[PayloadId, Verdict]] = {}
        for device, inspections in self._begun.items():
            for payload, inspection in inspections.items():
                try:
                    inspection.check()
                except LateFailure as error:
                    found.setdefault(device, {})[payload] = (str(error), False, error.diverged)
                except (TrainingDiverged, ProtocolViolation) as error:
                    kinds = isinstance(error, TrainingDiverged), isinstance(error, NotFinite)
                    found.setdefault(device, {})[payload] = (str(error), *kinds)
        return found

    def restore(self, saved: Inspected) -> None:
        self._begun = {
            device: {payload: _Known(*verdict) for payload, verdict in verdicts.items()}
            for device, verdicts in saved.items()
        }


@dataclass(frozen=True)
class _Known:
    """An inspection from before a checkpoint."""

    text: str
    own_loss: bool
    not_finite: bool

    def check(self) -> None:
        if self.own_loss:
            raise TrainingDiverged(self.text)
        raise NotFinite(self.text) if self.not_finite else ProtocolViolation(self.text)
