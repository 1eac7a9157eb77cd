"""A device with a valid certificate that tries everything, one function for each attempt.

An attempt may be refused at any point, so errors of the connection are expected; what the server
makes of it all is judged at the end of the run.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import torch
from torch import Tensor

from fedoptima.core.effects import Note, NoteKind, Send
from fedoptima.core.events import Connected, JobFailed
from fedoptima.core.jobs import FullStep
from fedoptima.core.messages import (
    ActivationBatch,
    Assignment,
    Failed,
    GlobalModel,
    Join,
    Message,
    ModelUpdate,
    TurnOn,
)
from fedoptima.core.types import SERVER, NodeId, Payload, PayloadId
from fedoptima.engine.payloads import unpack
from fedoptima.runtime.address import Address
from fedoptima.runtime.wire import wire_pb2 as wire
from fedoptima.runtime.wire.codec import URGENT, encode
from fedoptima.runtime.wire.frames import Chunk
from fedoptima.trace.record import Record
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


def records(*lines: str, first: int = 0) -> wire.Frame:
    return wire.Frame(telemetry=wire.Telemetry(first=first, lines=lines))


# ---- figures that no device has ------------------------------------------------------------------


ABSURD: tuple[dict[str, object], ...] = (
    {"samples": 10**18},
    {"samples": 10**12},
    {"samples": 2**62},
    {"samples": 0},
    {"bytes_per_second": 5e-324},
    {"bytes_per_second": 1e308},
    {"flops_per_second": 5e-324},
    {"flops_per_second": 1e308},
    {"version": 2**62},
    {"step": 2**62},
    {"pending": PayloadId("pi-1/0/1"), "version": 0},
)


@before_the_plan
def join_with_absurd_figures(field: Field) -> None:
    """And leave: a device that has left counts for nothing."""
    for figures in ABSURD:
        with field.peer(BRIEF) as peer:
            introduced(peer)
            peer.say(join(**figures))
            refused(peer)


@during_the_run
def join_with_absurd_figures_later(field: Field) -> None:
    for figures in ABSURD:
        with field.peer() as peer:
            introduced(peer)
            peer.say(join(**figures))
            answered(peer, GlobalModel)


@before_the_plan
def join_as_a_slow_device_with_much_data(field: Field) -> None:
    """Within all bounds, and a member to the end that does nothing."""
    peer = field.staying_peer(EVE)
    introduced(peer, EVE)
    peer.say(join(samples=1_000_000, flops_per_second=1e6, bytes_per_second=1e4))


@during_the_run
def hand_in_an_update_of_more_samples_than_there_are(field: Field) -> None:
    for trained in (2**62, 10**12, -5):
        with field.peer() as peer:
            peer.say(update(member(peer), trained=trained))
            answered(peer, GlobalModel)


@during_the_run
def hand_in_an_update_of_another_version(field: Field) -> None:
    for version in (2**62, -1, -(2**62)):
        with field.peer() as peer:
            peer.say(update(member(peer), version=version))
            answered(peer, GlobalModel)


# ---- values that no training gives ---------------------------------------------------------------


@during_the_run
def hand_in_a_model_that_is_not_finite_or_huge(field: Field) -> None:
    for value in (float("nan"), float("inf"), -float("inf"), LAST_RESORT, -LAST_RESORT, 1e20, 1e6):
        with field.peer() as peer:
            peer.say(update(member(peer), value))
            answered(peer, GlobalModel)


@during_the_run
def hand_in_a_negative_variance(field: Field) -> None:
    with field.peer() as peer:
        peer.say(update(member(peer), -1.0, only="running_var"))
        answered(peer, GlobalModel)


@during_the_run
def send_activations_that_are_not_finite_or_huge(field: Field) -> None:
    for value in (float("nan"), float("inf"), LAST_RESORT, 1e20, 1e6):
        with field.peer() as peer:
            member(peer, turn_on=True)
            peer.say(activations(value))
            answered(peer, TurnOn)


@during_the_run
def send_labels_that_are_no_classes(field: Field) -> None:
    for label in (7, -1, 2**62):
        with field.peer() as peer:
            member(peer, turn_on=True)
            peer.say(activations(0.0, label))
            answered(peer, TurnOn)


@during_the_run
def send_a_share_of_another_type(field: Field) -> None:
    """What only micro-batches have, and not as an integer."""
    with field.peer() as peer:
        member(peer, turn_on=True)
        batch = activations(0.0)
        tensors = {**unpack(batch.data), "share": torch.tensor(1)}
        peer.say(ActivationBatch(0, payload(tensors), part=0, parts=2))
        answered(peer, TurnOn)


# ---- names and numbers of others -----------------------------------------------------------------


@before_the_plan
def claim_a_session_of_the_future(field: Field) -> None:
    for session in (2**48, 2**64 - 1):
        with field.peer() as peer:
            peer.send(hello(MALLORY, last_session=session))
            peer.hear("ping")


@during_the_run
def claim_a_session_of_the_future_later(field: Field) -> None:
    claim_a_session_of_the_future(field)


@before_the_plan
def claim_another_name(field: Field) -> None:
    for name in ("pi-1", "server", "", "../../etc/passwd", "a" * 100_000, ESCAPES):
        with field.peer() as peer:
            peer.send(hello(name))
            refused(peer)


NAMES = ("evil|x", "", "server/0/1", "pi-1/0/1", "x" * 100_000, "../x", ESCAPES)


@during_the_run
def choose_the_ids_of_payloads(field: Field) -> None:
    with field.peer() as peer:
        model = member(peer)
        peer.say(update(model, name=model.data.id))
        answered(peer, GlobalModel)
    for name in NAMES:
        with field.peer() as peer:
            peer.say(update(member(peer), name=name))
            answered(peer, GlobalModel)
        with field.peer() as peer:
            member(peer, turn_on=True)
            peer.say(activations(0.0, name=name))
            answered(peer, TurnOn)


@during_the_run
def say_what_only_a_server_says(field: Field) -> None:
    with field.peer() as peer:
        member(peer)
        peer.say(TurnOn())
        refused(peer)


# ---- records -------------------------------------------------------------------------------------


@during_the_run
def send_records_that_nobody_can_read(field: Field) -> None:
    connected = Connected(SERVER, 1)
    for line in (
        '[1.0,"mallory",["JobDone","of","nothing"]]',
        '[1.0,"mallory",["Exec","rm"]]',
        '[1.0,"pi-1",["Disconnected","server",1]]',
        '[1.0,"mallory",["Disconnected","server",1]]\r[2.0,"pi-1",["Disconnected","server",1]]',
        "[" * 100_000,
        '[NaN,"mallory",["Disconnected","server",1]]',
        Record(1e300, MALLORY, connected, []).to_line(),
        Record(
            1.0, MALLORY, connected, [Note(NoteKind.DEVICE_FAILED, NodeId("pi-1"), "cheats")]
        ).to_line(),
        Record(1.0, MALLORY, connected, [Send(SERVER, 1, join(samples=10**18))]).to_line(),
        Record(1.0, MALLORY, JobFailed(1, FullStep(0), ESCAPES), []).to_line(),
        Record(1.0, MALLORY, JobFailed(1, FullStep(0), "x" * (651 << 10)), []).to_line(),
    ):
        with field.peer(BRIEF) as peer:
            introduced(peer)
            peer.send(records(line))
            peer.hear("telemetry_ack")


@during_the_run
def flood_with_records(field: Field) -> None:
    with field.peer(BRIEF) as peer:
        session = introduced(peer)
        line = Record(1.0, MALLORY, Connected(SERVER, session), []).to_line()
        for first in range(0, 200_000, 2000):
            peer.send(records(*[line] * 2000, first=first))
        refused(peer)


# ---- text ----------------------------------------------------------------------------------------


@before_the_plan
def introduce_oneself_with_escape_sequences(field: Field) -> None:
    for said in ({"version": ESCAPES}, {"process": ESCAPES}, {"run": ESCAPES}):
        with field.peer() as peer:
            peer.send(hello(MALLORY, **said))
            peer.hear("ping")


@during_the_run
def fail_with_escape_sequences(field: Field) -> None:
    for error in (ESCAPES, "x" * (651 << 10)):
        with field.peer() as peer:
            member(peer)
            peer.say(Failed(error))
            peer.send(wire.Frame(probe=wire.Probe(data=b"x", last=True)))
            peer.hear("probe_ack")


# ---- memory and time -----------------------------------------------------------------------------


def _promised(nbytes: int) -> wire.Frame:
    text = f'{{"huge":{{"dtype":"U8","shape":[{nbytes}],"data_offsets":[0,{nbytes}]}}}}'.encode()
    update = wire.ModelUpdate(data=wire.Payload(id=f"{MALLORY}/0/1", nbytes=nbytes))
    header = len(text).to_bytes(8, "little") + text
    return wire.Frame(head=wire.Head(lane=URGENT, header=header, model_update=update))


@during_the_run
def promise_gigabytes(field: Field) -> None:
    for nbytes in (5 << 30, 1 << 29, 1 << 62):
        with field.peer(BRIEF) as peer:
            member(peer)
            peer.send(_promised(nbytes), Chunk(URGENT, (memoryview(bytes(1 << 16)),)))
            refused(peer)


@during_the_run
def send_garbage(field: Field) -> None:
    for frame in (b"\xff\xff garbage", bytes((64 << 20) + 1), b"", Chunk(URGENT, ())):
        with field.peer(BRIEF) as peer:
            peer.send(frame)
            refused(peer)
        with field.peer(BRIEF) as peer:
            member(peer)
            peer.send(frame)
            refused(peer)


@during_the_run
def join_over_and_over(field: Field) -> None:
    with field.peer(BRIEF) as peer:
        introduced(peer)
        peer.send(*[encode(join()).head] * 3000)
        refused(peer)


@during_the_run
def ask_and_never_read(field: Field) -> None:
    with field.peer(BRIEF) as peer:
        introduced(peer)
        peer.send(*[wire.Frame(probe=wire.Probe(data=b"x", last=True))] * 20_000)
        refused(peer)


@during_the_run
def open_streams_and_say_nothing(field: Field) -> None:
    for _ in range(20):
        field.staying_peer()


@during_the_run
def connect_and_say_nothing(field: Field) -> None:
    for _ in range(100):
        with suppress(OSError):
            field.staying_socket(field.server)


@during_the_run
def speak_no_tls(field: Field) -> None:
    for words in (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\xff\xff", bytes(1 << 16)):
        with suppress(OSError):
            field.staying_socket(field.server).sendall(words)


@during_the_run
def ask_the_page_by_halves(field: Field) -> None:
    halves = (b"GET / HT", b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Slow: ", b"POST / HTTP/1.1\r\n")
    for half in halves * 20:
        with suppress(OSError):
            field.staying_socket(field.page).sendall(half)


@during_the_run
def begin_a_message_and_fall_silent(field: Field) -> None:
    """And stay, as a member that a run could wait for."""
    peer = field.staying_peer(TRUDY)
    peer.send(encode(update(member(peer, TRUDY), name=f"{TRUDY}/0/1")).head)
