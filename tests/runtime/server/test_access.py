"""Who may come in, over real TLS connections, while the server keeps running."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedoptima.core.jobs import FullStep
from fedoptima.core.types import NodeId
from fedoptima.runtime.device.client import Refused
from fedoptima.runtime.security.access_lists import AccessLists
from fedoptima.runtime.security.certificates import (
    authority_files,
    device_files,
    make_authority,
    make_device,
    revoke_device,
    server_files,
)
from tests.runtime.folders import device_of, server_of
from tests.support.network import NAMES, Gate, Server, start_device, tiny_recipe, until
from tests.support.proxy import Proxy


@pytest.fixture
def certs(tmp_path: Path) -> Path:
    return authority(tmp_path / "certs")


def authority(folder: Path) -> Path:
    make_authority(folder, ["127.0.0.1"])
    for name in NAMES:
        make_device(folder, name)
    return folder


@pytest.fixture
def listed(tmp_path: Path) -> Path:
    """The list of devices that may connect."""
    file = tmp_path / "devices.txt"
    file.write_text("fast\nmiddle\n")
    return file


@pytest.fixture
def server(
    tmp_path: Path, certs: Path, listed: Path, caplog: pytest.LogCaptureFixture
) -> Iterator[Server]:
    """It waits for three devices, so that a test has all its time."""
    caplog.set_level(logging.INFO)
    recipe = tiny_recipe("fl", deploy={"devices": 3, "patience": 600.0}, stop={"rounds": 1})
    tls = server_of(certs)
    access = AccessLists.of(listed, None, tls)
    with Server(recipe, tmp_path / "run", tls=tls, access=access) as running:
        yield running


def is_there(server: Server, name: str) -> bool:
    watch = server.watch
    return watch is not None and NodeId(name) in watch.node.machine.members


def session_of(server: Server, name: str) -> int:
    assert server.watch is not None
    found = server.watch.node.sessions.get(NodeId(name))
    return found.number if found else 0


def test_a_device_is_let_in_when_the_list_says_so_and_turned_away_when_it_does_not(
    server: Server, certs: Path, listed: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    refused = start_device("slow", server.address, tmp_path, tls=device_of(certs, "slow"))
    with pytest.raises(Refused, match=r"'slow' is not on this server's list of devices"):
        refused.answer()
    first = start_device("fast", server.address, tmp_path, tls=device_of(certs, "fast"))
    until(lambda: is_there(server, "fast"), "it has joined")
    listed.write_text("middle\nslow\n")
    with pytest.raises(Refused, match=r"'fast' is not on this server's list of devices"):
        first.answer()
    assert "fast is dropped: 'fast' is not on this server's list" in caplog.text
    until(lambda: not is_there(server, "fast"), "the core knows that it has gone")
    listed.write_text("".join(f"{name}\n" for name in NAMES))
    until(lambda: caplog.text.count("was read again: 3 entries") == 1, "the list was read")
    devices = [
        start_device(name, server.address, tmp_path, tls=device_of(certs, name)) for name in NAMES
    ]
    assert [device.answer() for device in devices] == [server.result().reason] * 3


def test_a_revoked_certificate_is_dropped_at_once_and_a_new_one_for_the_name_works(
    server: Server, certs: Path, listed: Path, tmp_path: Path
) -> None:
    listed.write_text("".join(f"{name}\n" for name in NAMES))
    own = device_files(certs, "fast")
    stolen = tmp_path / "stolen"
    (stolen / "devices").mkdir(parents=True)
    for path in (own.cert, own.key):
        (stolen / "devices" / path.name).write_bytes(path.read_bytes())
    thief = device_of(stolen, "fast", ca=authority_files(certs).cert)

    device = start_device("fast", server.address, tmp_path, tls=device_of(certs, "fast"))
    until(lambda: is_there(server, "fast"), "it has joined")
    (serial,) = revoke_device(certs, "fast")
    with pytest.raises(Refused, match=rf"serial number {serial:x} was revoked: get a new one"):
        device.answer()
    with pytest.raises(Refused, match="was revoked"):
        start_device("fast", server.address, tmp_path, tls=thief).answer()

    own.cert.unlink()
    own.key.unlink()
    make_device(certs, "fast")
    devices = [
        start_device(name, server.address, tmp_path, tls=device_of(certs, name)) for name in NAMES
    ]
    assert [device.answer() for device in devices] == [server.result().reason] * 3


def test_all_certificates_are_renewed_while_a_run_goes_on(
    server: Server, certs: Path, listed: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Even the CA: first both are trusted, then the new one alone."""
    listed.write_text("".join(f"{name}\n" for name in NAMES))
    until(lambda: "was read again: 3 entries" in caplog.text, "all may come")
    fresh = authority(tmp_path / "fresh")
    ca, new_ca = authority_files(certs).cert, authority_files(fresh).cert.read_text()
    gate = Gate()
    gate.hold(FullStep)  # the run goes on until the first device has come back
    with Proxy(server.address) as proxy:
        first = start_device("fast", proxy.address, tmp_path, tls=device_of(certs, "fast"))
        until(lambda: is_there(server, "fast"), "it has joined")

        ca.write_text(ca.read_text() + new_ca)
        own, new = server_files(certs), server_files(fresh)
        own.cert.write_bytes(new.cert.read_bytes())  # without its key: not to be used yet
        early = start_device("slow", server.address, tmp_path, tls=device_of(certs, "slow"))
        until(lambda: is_there(server, "slow"), "the old certificate is still in use")
        assert "is not the key of" in caplog.text
        assert "the certificates stay as they were" in caplog.text
        own.key.write_bytes(new.key.read_bytes())

        tls = device_of(fresh, "middle")
        other = start_device("middle", server.address, tmp_path, tls=tls, gate=gate)
        until(lambda: is_there(server, "middle") or other.error, "the new CA is trusted")
        assert "certificates were read again" in caplog.text

        ca.write_text(new_ca)
        for old, renewed in zip(
            (device_files(certs, "fast").cert, device_files(certs, "fast").key),
            (device_files(fresh, "fast").cert, device_files(fresh, "fast").key),
            strict=True,
        ):
            old.write_bytes(renewed.read_bytes())
        gate.waits_at(FullStep)
        before = session_of(server, "fast")
        proxy.cut()
        until(lambda: session_of(server, "fast") > before, "it is back, with its new certificate")
        gate.hold()
        devices = (first, other, early)
        assert [device.answer() for device in devices] == [server.result().reason] * 3
