"""Cores joined by a link without a clock: messages wait until the story delivers them.

Per receiver and sender, messages arrive in the order sent; jobs end when the story says so, or
round by round in `play`. The engines are the toy ones, so what is computed is real.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fedoptima.core.device import DeviceCore
from fedoptima.core.effects import Effect, Evaluate, Run, Send, SetTimer
from fedoptima.core.events import Connected, Disconnected, Evaluated, Event, JobDone, Received
from fedoptima.core.jobs import Job
from fedoptima.core.messages import Message
from fedoptima.core.method import Method, ServerTraining
from fedoptima.core.server import ServerCore
from fedoptima.core.settings import ServerSettings
from fedoptima.core.stopping import StopRule
from fedoptima.core.types import SERVER, NodeId, payload_id
from fedoptima.testing.toy import BATCH, ToyDevice, ToyServer


@dataclass(frozen=True)
class Mail:
    sender: NodeId
    to: NodeId
    session: int
    message: Message

    @property
    def device(self) -> NodeId:
        return self.to if self.sender == SERVER else self.sender


class Pair:
    def __init__(self, method: Method, *names: str, stop: StopRule | None = None) -> None:
        settings = ServerSettings(
            stop or StopRule(rounds=1000), devices=len(names), iterations=2, batch_size=BATCH
        )
        self.server = ServerCore(method, settings)
        self.devices = {
            NodeId(name): DeviceCore(samples=8, flops_per_second=1.0, bytes_per_second=1.0)
            for name in names
        }
        self.server_engine = ToyServer(per_device=method.training is ServerTraining.PER_DEVICE)
        self.engines = {name: ToyDevice(float(i)) for i, name in enumerate(self.devices)}
        self.sessions: dict[NodeId, int] = {}
        self.connected: dict[NodeId, None] = {}
        self.mail: list[Mail] = []
        self.jobs: dict[NodeId, tuple[int, Job]] = {}
        self.heard: list[tuple[NodeId, Message]] = []  # whatever was delivered, by receiver
        self.ran: list[tuple[NodeId, Job]] = []
        self.timers: dict[str, float] = {}
        self.now = 0.0
        for name in self.devices:
            self.connect(name)

    # ---- the network -------------------------------------------------------------------------

    def connect(self, name: str) -> None:
        device = NodeId(name)
        self.sessions[device] = self.sessions.get(device, 0) + 1
        self.connected[device] = None
        self.tell(SERVER, Connected(device, self.sessions[device]))
        self.tell(device, Connected(SERVER, self.sessions[device]))

    def cut(self, name: str) -> None:
        """The connection goes, with everything that is on its way."""
        device = NodeId(name)
        del self.connected[device]
        self.mail = [mail for mail in self.mail if mail.device != device]
        self.tell(SERVER, Disconnected(device, self.sessions[device]))
        self.tell(device, Disconnected(SERVER, self.sessions[device]))

    def deliver(self) -> Message:
        """The message that waits longest."""
        mail = self.mail.pop(0)
        self.heard.append((mail.to, mail.message))
        self.tell(mail.to, Received(mail.sender, mail.session, mail.message))
        return mail.message

    def on_its_way(self, kind: type, to: str | None = None) -> bool:
        return any(
            isinstance(mail.message, kind) and (to is None or mail.to == to) for mail in self.mail
        )

    # ---- the nodes ---------------------------------------------------------------------------

    def tell(self, node: NodeId, event: Event) -> list[Effect]:
        machine = self.server if node == SERVER else self.devices[node]
        effects = machine.handle(event, self.now)
        machine.check()
        for effect in effects:
            self._perform(node, effect)
        return effects

    def _perform(self, node: NodeId, effect: Effect) -> None:
        match effect:
            case Send(to, session, message):
                mail = Mail(node, to, session, message)
                if self.sessions[mail.device] == session and mail.device in self.connected:
                    self.mail.append(mail)
            case Run(ticket, job):
                assert node not in self.jobs
                self.jobs[node] = (ticket, job)
            case SetTimer(key, at):
                self.timers[key] = at
            case Evaluate(index=index):
                self.tell(SERVER, Evaluated(index, self.server_engine.evaluate()))

    def finish(self, name: str) -> Job:
        node = NodeId(name)
        ticket, job = self.jobs.pop(node)
        engine = self.server_engine if node == SERVER else self.engines[node]
        incarnation = 0 if node == SERVER else self.devices[node].incarnation
        outcome = engine.execute(job, payload_id(node, incarnation, ticket))
        self.ran.append((node, job))
        self.tell(node, JobDone(ticket, job, outcome.result, outcome.samples, outcome.text))
        return job

    def step(self) -> bool:
        """Deliver what waits longest, or else end the oldest job; false if there is neither."""
        if self.mail:
            self.deliver()
        elif self.jobs:
            self.finish(next(iter(self.jobs)))
        else:
            return False
        return True

    def play(self, until: Callable[[], bool], limit: int = 2000) -> None:
        """Go on until the story is where it is wanted."""
        for _ in range(limit):
            if until():
                return
            if not self.step():
                break
        raise AssertionError("the story never gets there")

    def count(self, node: str, kind: type) -> int:
        """How many messages of a kind a node has heard."""
        return sum(to == node and isinstance(message, kind) for to, message in self.heard)

    def executed(self, node: str, kind: type) -> int:
        return sum(where == node and isinstance(job, kind) for where, job in self.ran)
