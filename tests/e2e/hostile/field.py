"""What is attacked, and what an attacker says there."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import torch
from torch import Tensor

from fedoptima.core.messages import (
    ActivationBatch,
    Assignment,
    GlobalModel,
    Join,
    Message,
    ModelUpdate,
    TurnOn,
)
from fedoptima.core.types import NodeId, Payload, PayloadId
from fedoptima.engine.payloads import unpack
from fedoptima.runtime.address import Address
from tests.runtime.folders import device_of
from tests.support.raw_peer import RawPeer, hello

MALLORY, EVE, TRUDY = NodeId("mallory"), NodeId("eve"), NodeId("trudy")  # all with certificates
DEADLINE = 10.0  # seconds, for an attempt that the server leaves unanswered
BRIEF = 2.0  # for one that it may leave unanswered
ESCAPES = "\x1b[2J\x1b]0;owned\x07\x9b31m\rWARNING pi-1 cheats\n2026-01-01 INFO server: run is over"
LAST_RESORT = 1e38  # finite, and nothing that training gives

Attack = Callable[["Field"], None]
BEFORE_THE_PLAN: list[Attack] = []
DURING_THE_RUN: list[Attack] = []


def before_the_plan(attack: Attack) -> Attack:
    BEFORE_THE_PLAN.append(attack)
    return attack


def during_the_run(attack: Attack) -> Attack:
    DURING_THE_RUN.append(attack)
    return attack


@dataclass
class Field:
    """What is attacked. ``stays`` keeps connections open until the run has ended."""

    server: Address
    page: Address
    certs: Path
    stays: ExitStack = field(default_factory=ExitStack)

    @contextmanager
    def peer(self, deadline: float = DEADLINE) -> Iterator[RawPeer]:
        """Errors of the connection end the attempt."""
        with (
            suppress(grpc.RpcError, AssertionError),
            RawPeer(self.server, tls=device_of(self.certs, MALLORY), deadline=deadline) as peer,
        ):
            yield peer

    def staying_peer(self, name: NodeId = MALLORY) -> RawPeer:
        tls = device_of(self.certs, name)
        return self.stays.enter_context(RawPeer(self.server, tls=tls, deadline=120.0))

    def staying_socket(self, to: Address) -> socket.socket:
        place = (to.host, to.port)
        return self.stays.enter_context(socket.create_connection(place, timeout=DEADLINE))


def join(**figures: object) -> Join:
    usual: dict[str, object] = {"samples": 48, "flops_per_second": 1e8, "bytes_per_second": 1e6}
    return Join(incarnation=0, **{**usual, **figures})  # type: ignore[arg-type]


def introduced(peer: RawPeer, name: NodeId = MALLORY) -> int:
    """Its session."""
    peer.send(hello(name))
    session: int = peer.hear("welcome").welcome.session
    peer.hear("ping")
    return session


def member(peer: RawPeer, name: NodeId = MALLORY, *, turn_on: bool = False) -> GlobalModel:
    """The model that a device gets which has joined; ``turn_on``: and may send activations."""
    introduced(peer, name)
    peer.say(join())
    heard = peer.wait_for(Assignment, GlobalModel, *((TurnOn,) if turn_on else ()))
    return next(message for message in heard if isinstance(message, GlobalModel))


def refused(peer: RawPeer) -> None:
    """Wait for the end of the stream."""
    peer.ending()


def answered(peer: RawPeer, kind: type[Message]) -> None:
    """Wait for a message of this kind, or for the end of the stream."""
    next((message for message in peer.messages() if isinstance(message, kind)), None)


def payload(tensors: dict[str, Tensor], name: str = f"{MALLORY}/0/1") -> Payload:
    return Payload(PayloadId(name), sum(tensor.nbytes for tensor in tensors.values()), tensors)


def update(
    model: GlobalModel, value: float | None = None, *, only: str = "", **said: object
) -> ModelUpdate:
    """The model as it came, or with one value in all tensors that have ``only`` in their name."""
    tensors = {
        name: tensor.clone()
        if value is None or only not in name or not tensor.is_floating_point()
        else torch.full_like(tensor, value)
        for name, tensor in unpack(model.data).items()
    }
    data = payload(tensors, str(said.pop("name", f"{MALLORY}/0/1")))
    usual: dict[str, object] = {"version": model.version, "trained": 1}
    return ModelUpdate(data=data, **{**usual, **said})  # type: ignore[arg-type]


def activations(value: float, label: int = 0, name: str = f"{MALLORY}/0/1") -> ActivationBatch:
    tensors = {
        "activations.0": torch.full((8, 4, 4, 4), value),
        "labels": torch.full((8,), label, dtype=torch.int64),
    }
    return ActivationBatch(0, payload(tensors, name))
