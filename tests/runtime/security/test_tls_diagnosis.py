"""A device finds out why it is not let in, and tells it from a server that is away."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Thread

import grpc
import pytest

from fedoptima.runtime.address import Address
from fedoptima.runtime.security.certificates import make_authority, make_device
from fedoptima.runtime.security.tls import ServerTLS
from fedoptima.runtime.security.tls_diagnosis import diagnose
from tests.runtime.folders import bundle, device_of, server_of

NOW = datetime.now(UTC)


def certificates(folder: Path, host: str = "127.0.0.1", *, start: datetime = NOW) -> Path:
    make_authority(folder, [host], start=start)
    make_device(folder, "pi-1")
    return folder


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return certificates(tmp_path_factory.mktemp("ours"))


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return certificates(tmp_path_factory.mktemp("theirs"))


@contextmanager
def server(tls: ServerTLS | None) -> Iterator[Address]:
    with ThreadPoolExecutor(1) as pool:
        running = grpc.server(pool)
        if tls is None:
            port = running.add_insecure_port("127.0.0.1:0")
        else:
            port = running.add_secure_port("127.0.0.1:0", tls.credentials())
        running.start()
        try:
            yield Address("127.0.0.1", port)
        finally:
            running.stop(None).wait()


def test_a_device_that_would_be_let_in_may_try_again(ours: Path) -> None:
    with server(server_of(ours)) as address:
        assert diagnose(address, device_of(ours)) is None
    with server(None) as address:
        assert diagnose(address, None) is None


def test_a_certificate_the_server_does_not_trust(ours: Path, theirs: Path) -> None:
    device = device_of(theirs, ca=bundle(theirs, ours))  # trusts the server, is not trusted by it
    with server(server_of(ours)) as address:
        why = diagnose(address, device)
    assert why is not None
    assert why.startswith(f"{address} refused the certificate {device.cert} (of 'pi-1', signed by")
    assert "fedoptima certs device pi-1" in why


def test_a_certificate_that_was_let_in_before_is_not_one_that_is_refused(
    ours: Path, theirs: Path
) -> None:
    """A starved server hangs up as well, and so does a link that breaks."""
    device = device_of(theirs, ca=bundle(theirs, ours))
    before = device.cert.read_bytes()
    with server(server_of(ours)) as address:  # as if it were one that has no time
        assert diagnose(address, device, let_in_with=before) is None
        assert diagnose(address, device, let_in_with=b"another") is not None


def test_a_certificate_that_has_expired_since_the_device_began(ours: Path) -> None:
    make_device(ours, "old", start=NOW - timedelta(days=9), days=1)
    with server(server_of(ours)) as address:
        why = diagnose(address, device_of(ours, "old"))
    assert why is not None
    assert "old.pem: expired on" in why


def test_a_device_without_certificates_before_a_server_that_wants_them(ours: Path) -> None:
    with server(server_of(ours)) as address:
        why = diagnose(address, None)
    assert why is not None
    assert why.startswith(f"{address} accepts only devices with a certificate")
    assert "fedoptima certs device NAME" in why


def test_a_device_with_certificates_before_a_plain_server(ours: Path) -> None:
    with server(None) as address:
        why = diagnose(address, device_of(ours))
    assert why is not None
    assert why.startswith(f"{address} does not speak TLS: start that server with --tls-ca")


def test_a_server_of_another_ca(ours: Path, theirs: Path) -> None:
    with server(server_of(theirs)) as address:
        why = diagnose(address, device_of(ours))
    assert why is not None
    assert why.startswith(f"the certificate of {address} was not signed by the CA {ours}/ca.pem")


def test_a_server_whose_certificate_is_for_another_host(tmp_path: Path) -> None:
    certs = certificates(tmp_path, "train.example.org")
    with server(server_of(certs)) as address:
        by_number = diagnose(address, device_of(certs))
        by_name = diagnose(Address("localhost", address.port), device_of(certs))
    assert by_number is not None
    assert "is not good for 127.0.0.1" in by_number
    assert "fedoptima certs init --host 127.0.0.1" in by_number
    assert by_name is not None
    assert "is not good for localhost" in by_name


@pytest.mark.parametrize(
    ("start", "words"),
    [(-370, "has expired (this machine's clock says"), (20, "is not valid yet (this machine's")],
)
def test_a_server_whose_certificate_is_out_of_time(
    tmp_path: Path, ours: Path, start: int, words: str
) -> None:
    certs = certificates(tmp_path)
    for path in ("server.pem", "server-key.pem"):
        (certs / path).unlink()
    make_authority(certs, ["127.0.0.1"], start=NOW + timedelta(days=start), days=365)
    with server(server_of(certs)) as address:
        why = diagnose(address, device_of(certs))
    assert why is not None
    assert f"the certificate of {address} {words}" in why


def test_a_server_that_is_away_may_come_back(ours: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    assert diagnose(Address("127.0.0.1", port), device_of(ours)) is None
    assert diagnose(Address("127.0.0.1", port), None) is None


def test_a_server_that_does_not_answer_may_do_so_later(ours: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = Address("127.0.0.1", silent.getsockname()[1])
        assert diagnose(address, device_of(ours), timeout=0.05) is None
        assert diagnose(address, None, timeout=0.05) is None


def test_a_server_that_is_being_stopped_is_not_one_that_refuses(ours: Path, theirs: Path) -> None:
    """It hangs up once, as one that refuses does, and is away when it is asked again."""
    device = device_of(theirs, ca=bundle(theirs, ours))
    with server(server_of(ours)) as address, socket.create_server(("127.0.0.1", 0)) as door:
        once = Thread(target=lend_once, args=(door, address), daemon=True)
        once.start()
        assert diagnose(Address("127.0.0.1", door.getsockname()[1]), device) is None
        once.join()


def lend_once(door: socket.socket, to: Address) -> None:
    """Pass one connection on to a server, and close the door behind it."""
    inner, _ = door.accept()
    door.close()
    with inner, socket.create_connection((to.host, to.port)) as outer:
        back = Thread(target=pump, args=(outer, inner))
        back.start()
        pump(inner, outer)
        back.join()


def pump(source: socket.socket, goal: socket.socket) -> None:
    try:
        while data := source.recv(65536):
            goal.sendall(data)
        goal.shutdown(socket.SHUT_WR)
    except OSError:
        pass
