"""Connections that keep the page waiting, over real sockets."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from threading import Event, Thread

import pytest

from fedoptima.dashboard.connections import Patience
from fedoptima.dashboard.folder import Runs
from fedoptima.dashboard.server import open_socket, serve
from tests.dashboard.folders import write_run
from tests.dashboard.stories import story
from tests.support.network import until

DEADLINE = 120.0  # seconds, for what takes less than one
REQUEST = b"GET /api/runs HTTP/1.1\r\nHost: localhost\r\n\r\n"
HALF = REQUEST[:-2]

Connect = Callable[[], socket.socket]


def page(tmp_path: Path, patience: Patience) -> Iterator[Connect]:
    write_run(tmp_path / "run", story())
    listening = open_socket("127.0.0.1", 0)
    address = listening.getsockname()
    over = Event()
    serving = Thread(
        target=lambda: serve(
            Runs.at(tmp_path), listening, until=lambda: over.wait() and None, patience=patience
        ),
        daemon=True,
    )
    serving.start()
    with ExitStack() as stack:

        def connect() -> socket.socket:
            return stack.enter_context(socket.create_connection(address, timeout=DEADLINE))

        yield connect
    over.set()


@pytest.fixture(scope="module")
def connect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connect]:
    patience = Patience(request=2.0, reading=1.0, connections=20)
    yield from page(tmp_path_factory.mktemp("impatient"), patience)


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connect]:
    patience = Patience(request=1e6, connections=20)
    yield from page(tmp_path_factory.mktemp("crowded"), patience)


def answer(connection: socket.socket) -> bytes:
    connection.sendall(REQUEST)
    return connection.recv(15)


def read_to_the_end(connection: socket.socket) -> int:
    """How many bytes came; fails if the other side does not close it."""
    count = 0
    try:
        while data := connection.recv(1 << 16):
            count += len(data)
    except ConnectionResetError:
        pass
    return count


@pytest.mark.parametrize("begun", [b"", HALF])
def test_a_request_that_does_not_come_to_its_end_is_given_up(
    connect: Connect, begun: bytes
) -> None:
    connection = connect()
    connection.sendall(begun)
    assert read_to_the_end(connection) == 0


def test_half_a_second_request_is_given_up_too(connect: Connect) -> None:
    connection = connect()
    assert answer(connection) == b"HTTP/1.1 200 OK"
    connection.sendall(HALF)
    read_to_the_end(connection)


def test_a_browser_that_does_not_read_on_is_given_up(connect: Connect) -> None:
    connection = connect()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 12)
    wanted = 50  # times four megabytes of JavaScript: more than any buffer on the way holds
    asked = b"GET /static/plotly.min.js HTTP/1.1\r\nHost: localhost\r\n\r\n" * wanted
    connection.sendall(asked)
    closed = Event()
    Thread(target=partial(_wait_for_end, connection, closed), daemon=True).start()
    assert closed.wait(DEADLINE)


def _wait_for_end(connection: socket.socket, closed: Event) -> None:
    """Writes, since reading is what it does not do: fails once the other side has closed it."""
    try:
        while True:
            connection.sendall(REQUEST)
            Event().wait(0.05)
    except OSError:
        closed.set()


def is_closed(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


def test_half_requests_do_not_lock_a_browser_out(crowded: Connect) -> None:
    halves = [crowded() for _ in range(60)]
    for half in halves:
        with suppress(OSError):  # it has made room already
            half.sendall(HALF)
    assert answer(crowded()) == b"HTTP/1.1 200 OK"
    until(lambda: sum(map(is_closed, halves)) >= 40, "there is room")


def test_a_stream_that_is_watched_stays(connect: Connect) -> None:
    viewer = connect()
    viewer.sendall(b"GET /api/events?run=run HTTP/1.1\r\nHost: localhost\r\n\r\n")
    heard = b""
    while heard.count(b"data: ") < 3:  # about one a second
        heard += viewer.recv(1 << 16)
    assert heard.startswith(b"HTTP/1.1 200 OK")
