from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedoptima.cli.commands.certs import certs
from fedoptima.runtime.address import Address
from fedoptima.runtime.security.pem import hosts_of, read_certificates
from fedoptima.runtime.security.tls import DeviceTLS, ServerTLS
from tests.cli.conftest import Answer, Call


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    """Call the sub-command in this process, from an empty folder."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str | Path) -> Answer:
        result = CliRunner().invoke(certs, [str(argument) for argument in arguments])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Answer(result.exit_code, result.stdout, result.stderr)

    return run


def tls_options(line: str) -> dict[str, Path]:
    words = shlex.split(line)
    return {name: Path(words[words.index(f"--tls-{name}") + 1]) for name in ("ca", "cert", "key")}


def command(answer: Answer, name: str) -> str:
    """The line with the command that the user is told to type."""
    [line] = [line for line in answer.out.splitlines() if line.startswith(f"  fedoptima {name} ")]
    return line


def test_init_makes_what_a_server_needs_and_says_how_to_start_it(call: Call) -> None:
    answer = call("init", "--host", "train.example.org", "--host", "10.0.0.4")
    assert answer.code == 0
    files = ServerTLS(**tls_options(command(answer, "server")))
    for host in ("train.example.org", "10.0.0.4", "localhost", "127.0.0.1", "::1"):
        assert files.check(Address(host, 50051)) == []
    assert "fedoptima certs device NAME\n" in answer.out
    assert "Whoever has certs/ca-key.pem can make devices" in answer.words


def test_device_says_what_to_copy_and_what_to_type_there(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call("init", "--host", "train.example.org")
    answer = call("device", "pi-1", "--days", "30")
    assert answer.code == 0
    there = tmp_path / "there"
    there.mkdir()
    for path in re.findall(r"^  (certs/\S+)$", answer.out, re.MULTILINE):
        os.link(path, there / Path(path).name)
    line = command(answer, "device")
    assert "--server train.example.org:50051 --name pi-1" in line
    monkeypatch.chdir(there)
    assert DeviceTLS(**tls_options(line)).check("pi-1") == []


def test_another_folder_is_named_in_what_to_type(call: Call) -> None:
    answer = call("init", "--out", "my certs")
    assert "fedoptima certs device NAME --out 'my certs'" in answer.out
    assert tls_options(command(answer, "server"))["key"] == Path("my certs/server-key.pem")
    assert call("device", "pi-1", "--out", "my certs").code == 0
    assert Path("my certs/devices/pi-1-key.pem").exists()


def test_where_the_servers_certificate_is_not_its_host_is_left_open(call: Call) -> None:
    call("init")
    Path("certs/server.pem").unlink()
    assert "--server HOST:50051 --name pi-1" in call("device", "pi-1").out


def test_init_again_renews_the_servers_certificate_alone(call: Call) -> None:
    call("init")
    ca = Path("certs/ca.pem").read_bytes()
    refused = call("init", "--host", "10.0.0.4")
    assert refused.code == 2
    assert "certs/server.pem: exists already and is not overwritten" in refused.complaint
    for name in ("server.pem", "server-key.pem"):
        Path("certs", name).unlink()
    renewed = call("init", "--host", "10.0.0.4")
    assert renewed.code == 0
    assert "a CA" not in renewed.out
    assert Path("certs/ca.pem").read_bytes() == ca
    assert "10.0.0.4" in hosts_of(read_certificates(Path("certs/server.pem"))[0])


def test_revoke_names_the_serial_numbers_and_says_what_to_do_with_the_list(call: Call) -> None:
    call("init")
    call("device", "pi-1")
    serial = read_certificates(Path("certs/devices/pi-1.pem"))[0].serial_number
    answer = call("revoke", "pi-1")
    assert answer.code == 0
    assert f"revoked the certificates of pi-1 with these serial numbers: {serial:x}" in answer.words
    assert "Copy certs/revoked.txt to the server, next to its ca.pem" in answer.words
    assert Path("certs/revoked.txt").read_text().startswith(f"{serial:x} pi-1 ")
    assert "every certificate of pi-1 is on certs/revoked.txt already" in (
        call("revoke", "pi-1").words
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["revoke", "pi-1"], "'pi-1': no certificate was made for this device in certs"),
        (["device", "pi-1"], "certs/ca.pem: no such file; make it with 'fedoptima certs init'"),
        (["device", "server"], "'server' cannot be a device's name"),
        (["init", "--host", "here:1"], "--host here:1: is neither a name nor an address"),
        (["init", "--days", "0"], "--days"),
        (["device"], "NAME"),
    ],
)
def test_a_mistake_is_one_paragraph_with_the_way_out(
    call: Call, arguments: list[str], words: str
) -> None:
    answer = call(*arguments)
    assert answer.code == 2
    assert words in answer.complaint
    assert "Traceback" not in answer.err
    assert not Path("certs").exists()
