"""Who a device is, through the real commands: the wrong ones learn why, the right one gets in."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from fedoptima.runtime.device.client import Refused
from fedoptima.runtime.security.certificates import (
    authority_files,
    device_files,
    make_authority,
    make_device,
    server_files,
)
from tests.runtime.folders import bundle, device_of
from tests.support.network import start_device
from tests.support.processes import Command, Fleet, fleet

EXPIRED = datetime.now(UTC) - timedelta(days=30)


@pytest.fixture(scope="module")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The CA of this fleet, with certificates for two devices."""
    folder = tmp_path_factory.mktemp("certs")
    make_authority(folder, ["127.0.0.1"])
    for name in ("pi-1", "pi-2"):
        make_device(folder, name)
    return folder


@pytest.fixture
def guarded(tmp_path: Path, certs: Path) -> Iterator[tuple[Fleet, Command]]:
    """A fleet whose server has a certificate, and is waiting for two devices."""
    with fleet(tmp_path, "fl") as run:
        own = server_files(certs)
        yield run, run.start_server("--set", "stop.rounds=1", *tls(certs, own.cert, own.key))


def tls(certs: Path, cert: Path, key: Path) -> list[str]:
    ca = authority_files(certs).cert
    return ["--tls-ca", str(ca), "--tls-cert", str(cert), "--tls-key", str(key)]


def papers(certs: Path, name: str) -> list[str]:
    own = device_files(certs, name)
    return tls(certs, own.cert, own.key)


def finishes_with(run: Fleet, server: Command, certs: Path, *devices: Command) -> None:
    """Whoever was refused, the run is led by the good ones to its end."""
    last = run.start_device("pi-2", *papers(certs, "pi-2"))
    for command in (*devices, last, server):
        assert command.ends() == 0, command.said


def test_devices_without_the_right_certificate_are_refused_and_the_server_goes_on(
    guarded: tuple[Fleet, Command], certs: Path, tmp_path: Path
) -> None:
    run, server = guarded
    elsewhere = tmp_path / "elsewhere"
    make_authority(elsewhere)
    make_device(elsewhere, "pi-1")
    late = tmp_path / "late"
    late.mkdir()
    for file in (authority_files(certs).cert, authority_files(certs).key):
        (late / file.name).write_bytes(file.read_bytes())
    make_device(late, "pi-1", days=1, start=EXPIRED)

    foreign = device_files(elsewhere, "pi-1")
    both = ["--tls-ca", str(bundle(elsewhere, certs))]  # trusted by the device, not by the server
    wrong = {
        "without": run.start_device("pi-1"),
        "foreign": run.start_device("pi-1", *tls(certs, foreign.cert, foreign.key), *both),
        "expired": run.start_device("pi-1", *papers(late, "pi-1")),
        "not its own": run.start_device("pi-1", *papers(certs, "pi-2")),
    }
    codes = {name: device.ends() for name, device in wrong.items()}
    said = {name: " ".join(device.said.split()) for name, device in wrong.items()}
    assert "accepts only devices with a certificate, and this one has none" in said["without"]
    assert "it is not from the CA which that server trusts" in said["foreign"]
    assert "expired on" in said["expired"]
    assert "is that of 'pi-2', and a device goes by its certificate's name" in said["not its own"]
    assert codes == {"without": 1, "foreign": 1, "expired": 2, "not its own": 2}

    # Those that the command would not even have let out.
    with pytest.raises(Refused, match="expired on"):
        start_device("pi-1", run.address, tmp_path, tls=device_of(late, "pi-1")).answer()
    with pytest.raises(Refused, match="the certificate is that of 'pi-2', not of 'pi-1'"):
        start_device("pi-1", run.address, tmp_path, tls=device_of(certs, "pi-2")).answer()
    server.says("was refused: the certificate is that of 'pi-2', not of 'pi-1'")

    finishes_with(run, server, certs, run.start_device("pi-1", *papers(certs, "pi-1")))


def test_a_second_live_device_with_the_same_certificate_is_refused(
    guarded: tuple[Fleet, Command], certs: Path
) -> None:
    run, server = guarded
    first = run.start_device("pi-1", *papers(certs, "pi-1"))
    server.says("pi-1 joined")
    second = run.start_device("pi-1", *papers(certs, "pi-1"), "--state", str(run.folder / "other"))
    assert second.ends() == 1
    assert "'pi-1' is connected already" in " ".join(second.said.split())
    server.says("was refused: 'pi-1' is connected already")
    finishes_with(run, server, certs, first)
