"""What an operator would act on, said in a node's log as its records are made.

That devices come and go is logged where connections are; what is here is what they say and do.
"""

from __future__ import annotations

import logging
import time

from fedoptima.core.effects import Halt, Send
from fedoptima.core.events import Disconnected, JobDone, Received
from fedoptima.core.jobs import PlanRun
from fedoptima.core.messages import Join, ModelUpdate
from fedoptima.core.plan import Plan
from fedoptima.core.types import NodeId
from fedoptima.trace.record import Record

_SELDOM = 10.0  # seconds at least between two lines on a device's rounds


class ServerLog:
    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._joined: set[NodeId] = set()
        self._over = False

    def observe(self, record: Record) -> None:
        self._over = self._over or any(isinstance(effect, Halt) for effect in record.effects)
        event = record.event  # nearly all are none of these
        if isinstance(event, Received) and isinstance(event.message, Join):
            join = event.message
            self._joined.add(event.sender)
            self._log.info("%s joined%s: %s", event.sender, _brought(join), _introduced(join))
        elif isinstance(event, Disconnected):
            self._left(event.peer)
        elif isinstance(event, JobDone) and isinstance(event.job, PlanRun):
            devices, plan = len(event.job.devices), _in_words(Plan.from_json(event.text))
            several = "s" if devices > 1 else ""
            self._log.info("planned for %d device%s: %s", devices, several, plan)

    def _left(self, device: NodeId) -> None:
        if device in self._joined:
            self._joined.discard(device)
            if not (self._joined or self._over):
                self._log.warning(
                    "no device is left: the run waits until one comes (back); Ctrl-C stops it, and "
                    "--resume continues it later"
                )


class DeviceLog:
    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._rounds = 0
        self._last = float("-inf")

    def observe(self, record: Record) -> None:
        for effect in record.effects:
            if isinstance(effect, Send) and isinstance(effect.message, ModelUpdate):
                self._handed_in(effect.message)

    def _handed_in(self, update: ModelUpdate) -> None:
        self._rounds += 1
        now = time.monotonic()
        if now - self._last < _SELDOM:
            return
        self._last = now
        self._log.info(
            "round %d is handed in: version %d trained on %d samples%s",
            self._rounds,
            update.version,
            update.trained,
            f", {update.forwarded} more only sent" if update.forwarded else "",
        )


def _introduced(join: Join) -> str:
    speed, uplink = join.flops_per_second / 1e9, join.bytes_per_second * 8 / 1e6
    return f"{join.samples} samples, {speed:.2f} GFLOP/s, uplink {uplink:.1f} Mbit/s"


def _brought(join: Join) -> str:
    if join.pending is not None:
        return f" with an update of version {join.version}"
    return f" in the middle of a round of version {join.version}" if join.training else ""


def _in_words(plan: Plan) -> str:
    if plan.split == len(plan.blocks):
        return "every device trains the whole model"
    if plan.cuts:
        most = plan.cuts[-1].split
        return f"{plan.split} to {most} of {len(plan.blocks)} blocks are on a device, as suits it"
    first = plan.blocks[plan.split - 1].name
    text = f"{plan.split} of {len(plan.blocks)} blocks are on the devices, up to {first}"
    if plan.auxiliary_profile is None:
        return text
    return f"{text}, with an auxiliary network of {plan.auxiliary_profile.parameters:,} parameters"
