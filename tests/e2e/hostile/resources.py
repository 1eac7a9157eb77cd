"""The server's memory, connections and time."""

from __future__ import annotations

from contextlib import suppress

from fedoptima.runtime.wire import wire_pb2 as wire
from fedoptima.runtime.wire.codec import URGENT, encode
from fedoptima.runtime.wire.frames import Chunk
from tests.e2e.hostile.field import (
    BRIEF,
    MALLORY,
    TRUDY,
    Field,
    during_the_run,
    introduced,
    join,
    member,
    refused,
    update,
)


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
