"""Who gets in, and what is found wrong before anybody knocks."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import pytest

from fedoptima.core.errors import ConfigError
from fedoptima.runtime.address import Address, parse_address
from fedoptima.runtime.security.certificates import (
    authority_files,
    device_files,
    make_authority,
    make_device,
    server_files,
)
from fedoptima.runtime.security.tls import DeviceTLS, ServerTLS, choose_security, peer_name
from fedoptima.runtime.security.tls_diagnosis import diagnose
from tests.runtime.folders import bundle, device_of, server_of
from tests.runtime.security.doorway import Doorway, knock

NOW = datetime.now(UTC)
LOCAL = Address("127.0.0.1", 50051)


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The server's CA, with a good device and two out of time."""
    folder = tmp_path_factory.mktemp("ours")
    make_authority(folder, ["127.0.0.1"])
    make_device(folder, "pi-1")
    make_device(folder, "old", start=NOW - timedelta(days=9), days=1)
    make_device(folder, "early", start=NOW + timedelta(days=9), days=1)
    return folder


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another CA, with a device of the same name."""
    folder = tmp_path_factory.mktemp("theirs")
    make_authority(folder, ["127.0.0.1"])
    make_device(folder, "pi-1")
    return folder


# ---- at the server's door ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def doorway(ours: Path) -> Iterator[Doorway]:
    server = Doorway(ours)
    yield server
    server.close()


def test_a_good_device_gets_in_under_its_certificates_name(doorway: Doorway, ours: Path) -> None:
    assert asyncio.run(knock(doorway.port, device_of(ours).credentials())) == "pi-1"


@pytest.mark.parametrize(
    "stranger", ["without certificate", "other CA", "expired", "early", "server", "plain"]
)
def test_a_stranger_is_refused_and_the_server_continues(
    doorway: Doorway, ours: Path, theirs: Path, stranger: str
) -> None:
    ca, server = authority_files(ours).cert, server_files(ours)
    credentials = {
        "without certificate": grpc.ssl_channel_credentials(ca.read_bytes()),
        "other CA": device_of(theirs, ca=ca).credentials(),
        "expired": device_of(ours, "old").credentials(),
        "early": device_of(ours, "early").credentials(),
        "server": DeviceTLS(ca, server.cert, server.key).credentials(),
        "plain": None,
    }
    with pytest.raises(grpc.RpcError) as refused:
        asyncio.run(knock(doorway.port, credentials[stranger]))
    assert refused.value.code() == grpc.StatusCode.UNAVAILABLE
    assert asyncio.run(knock(doorway.port, device_of(ours).credentials())) == "pi-1"


def test_a_device_that_does_not_trust_the_server_says_why(doorway: Doorway, theirs: Path) -> None:
    why = diagnose(Address("127.0.0.1", doorway.port), device_of(theirs))
    assert why is not None
    assert "was not signed by the CA" in why


@pytest.mark.parametrize("verbosity", [None, "INFO"])
def test_grpcs_own_log_is_silent_unless_the_user_asks_for_it(
    ours: Path, theirs: Path, verbosity: str | None
) -> None:
    server = Doorway(ours, verbosity)
    stranger = device_of(theirs, ca=authority_files(ours).cert)
    with pytest.raises(grpc.RpcError):
        asyncio.run(knock(server.port, stranger.credentials()))
    said = server.close()
    assert "Handshake failed" in said if verbosity else said == ""


class Peer:
    def __init__(self, **proved: list[bytes]) -> None:
        self._proved = proved

    def auth_context(self) -> Mapping[str, list[bytes]]:
        return self._proved


@pytest.mark.parametrize(
    "peer",
    [
        Peer(),
        Peer(x509_common_name=[b"pi-1"]),
        Peer(transport_security_type=[b"insecure"], x509_common_name=[b"pi-1"]),
        Peer(transport_security_type=[b"ssl"]),
        Peer(transport_security_type=[b"ssl"], x509_common_name=[b"pi-1", b"pi-2"]),
    ],
)
def test_who_has_not_proved_one_name_has_none(peer: Peer) -> None:
    assert peer_name(peer) is None


# ---- the files, before any connection ----------------------------------------------------------


def test_good_files_give_no_warning(ours: Path) -> None:
    assert server_of(ours).check(LOCAL) == []
    assert device_of(ours).check("pi-1") == []


@pytest.fixture
def certs(tmp_path: Path, ours: Path) -> Path:
    """A copy to spoil."""
    return shutil.copytree(ours, tmp_path / "certs")


def without_ca(certs: Path, _: Path) -> None:
    (certs / "ca.pem").unlink()


def garbled(certs: Path, _: Path) -> None:
    device_files(certs, "pi-1").cert.write_text("hello")


def garbled_key(certs: Path, _: Path) -> None:
    device_files(certs, "pi-1").key.write_bytes(b"\xff\x00")


def a_folder(certs: Path, _: Path) -> None:
    (certs / "ca.pem").unlink()
    (certs / "ca.pem").mkdir()


def anothers_key(certs: Path, _: Path) -> None:
    shutil.copy(device_files(certs, "old").key, device_files(certs, "pi-1").key)


def another_ca(certs: Path, theirs: Path) -> None:
    shutil.copy(theirs / "ca.pem", certs / "ca.pem")


def the_servers(certs: Path, _: Path) -> None:
    server, device = server_files(certs), device_files(certs, "pi-1")
    shutil.copy(server.cert, device.cert)
    shutil.copy(server.key, device.key)


@pytest.mark.parametrize(
    ("spoil", "file", "words"),
    [
        (without_ca, "ca.pem", "no such file; make it with 'fedoptima certs init'"),
        (garbled, "pi-1.pem", "is not a PEM certificate"),
        (garbled_key, "pi-1-key.pem", "is not a PEM private key"),
        (a_folder, "ca.pem", "cannot be read: Is a directory"),
        (anothers_key, "pi-1-key.pem", "is not the key of"),
        (another_ca, "pi-1.pem", "was not signed by the CA"),
        (the_servers, "pi-1.pem", "is not a device's certificate; make one with"),
    ],
)
def test_a_bad_file_is_named_with_the_way_out(
    certs: Path, theirs: Path, spoil: Callable[[Path, Path], None], file: str, words: str
) -> None:
    spoil(certs, theirs)
    with pytest.raises(ConfigError) as error:
        device_of(certs).check("pi-1")
    assert f"/{file}: {words}" in str(error.value)


def test_a_certificate_out_of_time_says_when_and_what_the_clock_says(ours: Path) -> None:
    with pytest.raises(ConfigError, match=r"old\.pem: expired on .* UTC \(now .* make new ones"):
        device_of(ours, "old").check("old")
    with pytest.raises(ConfigError, match=r"early\.pem: is not valid before .* set the clock"):
        device_of(ours, "early").check("early")


def test_a_device_goes_by_its_certificates_name_only(ours: Path) -> None:
    with pytest.raises(ConfigError, match=r"--name pi-2: .* 'pi-1'.*certs device pi-2"):
        device_of(ours).check("pi-2")


def test_several_cas_in_one_file_are_all_trusted(ours: Path, theirs: Path) -> None:
    assert device_of(theirs, ca=bundle(ours, theirs)).check("pi-1") == []


def test_a_chain_over_other_certificates_leads_to_the_ca(ours: Path, tmp_path: Path) -> None:
    files, chain = device_files(ours, "pi-1"), tmp_path / "chain.pem"
    ca = authority_files(ours).cert
    chain.write_text(files.cert.read_text() + ca.read_text())
    assert DeviceTLS(ca, chain, files.key).check("pi-1") == []
    chain.write_text(files.cert.read_text() + server_files(ours).cert.read_text())
    with pytest.raises(ConfigError, match="was not signed by the CA"):
        DeviceTLS(ca, chain, files.key).check("pi-1")


def test_an_end_that_is_near_is_warned_of(tmp_path: Path) -> None:
    make_authority(tmp_path, ["127.0.0.1"], start=NOW - timedelta(days=3645), days=3650)
    certificate, ca = server_of(tmp_path).check(LOCAL)
    assert "server.pem: expires on" in certificate
    assert "fedoptima certs init" in certificate
    assert "ca.pem: expires on" in ca


def test_a_certificate_for_a_short_run_is_not_near_its_end(tmp_path: Path) -> None:
    make_authority(tmp_path, ["127.0.0.1"], days=1)
    assert server_of(tmp_path).check(LOCAL) == []


def test_a_key_open_to_others_is_warned_of(certs: Path) -> None:
    device_files(certs, "pi-1").key.chmod(0o640)
    [warning] = device_of(certs).check("pi-1")
    assert "pi-1-key.pem: others can read this key; type: chmod 600" in warning


@pytest.mark.parametrize(
    ("hosts", "listen", "warned"),
    [
        (["127.0.0.1"], "10.1.2.3", True),
        (["127.0.0.1"], "localhost", True),
        (["Train.example.org"], "train.EXAMPLE.org", False),
        (["::1"], "0:0::1", False),
        (["127.0.0.1"], "0.0.0.0", False),
        (["127.0.0.1"], "::", False),
    ],
)
def test_a_server_is_warned_if_its_certificate_is_not_good_for_its_address(
    tmp_path: Path, hosts: list[str], listen: str, warned: bool
) -> None:
    make_authority(tmp_path, hosts)
    warnings = server_of(tmp_path).check(Address(listen, 50051))
    assert len(warnings) == warned
    if warned:
        assert "is good for 127.0.0.1; devices that connect to" in warnings[0]
        assert f"fedoptima certs init --host {listen}" in warnings[0]


# ---- which security ----------------------------------------------------------------------------


FILES = DeviceTLS(Path("ca.pem"), Path("a.pem"), Path("a-key.pem"))


def test_the_three_files_come_together_or_not_at_all() -> None:
    assert DeviceTLS.of(None, None, None) is None
    assert DeviceTLS.of(FILES.ca, FILES.cert, FILES.key) == FILES
    with pytest.raises(ConfigError, match=r"--tls-cert and --tls-key missing: .*certs device NAME"):
        DeviceTLS.of(FILES.ca, None, None)
    with pytest.raises(ConfigError, match=r"--tls-ca missing: .*certs init"):
        ServerTLS.of(None, FILES.cert, FILES.key)


@pytest.mark.parametrize("host", ["localhost", "LocalHost", "127.0.0.1", "127.8.9.10", "::1"])
def test_inside_the_machine_a_plain_connection_is_allowed(host: str) -> None:
    assert choose_security(Address(host, 1), None, insecure=False) is None


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "::", "10.0.0.1", "128.0.0.1", "fe80::1", "train.example.org", "localhos"]
)
def test_over_the_network_a_plain_connection_must_be_asked_for(host: str) -> None:
    with pytest.raises(ConfigError, match=r"fedoptima certs init.*or pass --insecure"):
        choose_security(Address(host, 1), None, insecure=False)
    assert choose_security(Address(host, 1), None, insecure=True) is None


@pytest.mark.parametrize("host", ["localhost", "10.0.0.1"])
def test_certificates_are_used_everywhere_and_contradict_insecure(host: str) -> None:
    assert choose_security(Address(host, 1), FILES, insecure=False) is FILES
    with pytest.raises(ConfigError, match="--insecure contradicts"):
        choose_security(Address(host, 1), FILES, insecure=True)


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("localhost:50051", "localhost", 50051),
        ("10.0.0.1:1", "10.0.0.1", 1),
        ("[::1]:65535", "::1", 65535),
    ],
)
def test_an_address_is_read_and_written_alike(text: str, host: str, port: int) -> None:
    address = parse_address(text, option="--server")
    assert (address.host, address.port) == (host, port)
    assert str(address) == text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "HOST:PORT"),
        ("localhost", "HOST:PORT"),
        (":50051", "HOST:PORT"),
        ("::1:50051", "HOST:PORT"),
        ("http://here:1", "HOST:PORT"),
        ("[here]:1", "IPv6"),
        ("here:", "the port ''"),
        ("here:0", "from 1 to 65535"),
        ("here:65536", "from 1 to 65535"),
        ("here:-1", "the port '-1'"),
        ("here:http", "the port 'http'"),
        ("here:１", "the port"),  # noqa: RUF001 - a digit to Python, not to anybody else
    ],
)
def test_an_address_that_cannot_work_is_explained(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_address(text, option="--server")
    assert str(error.value).startswith(f"--server {text}: ")
    assert words in str(error.value)


def test_a_server_may_take_any_free_port() -> None:
    assert parse_address("localhost:0", option="--listen", any_port=True).port == 0
