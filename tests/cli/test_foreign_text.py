"""What another machine says reaches log and terminal quoted and cut: it forges nothing there."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from rich.text import Text

from fedoptima.cli.errors import complain, warn
from fedoptima.cli.logs import DeviceErrors, attached, log_to_console, log_to_file
from fedoptima.core.messages import Failed, GlobalModel, Join, Stop
from fedoptima.display.console import plain_table, stderr, stdout
from fedoptima.runtime.wire import wire_pb2 as wire
from fedoptima.runtime.wire.codec import URGENT
from tests.cli.test_fleet_view import STATE, drawn
from tests.support.network import Server, tiny_recipe, until
from tests.support.raw_peer import RawPeer, hello

LOG = logging.getLogger("fedoptima.server")
FORGED = "12:00:00 fast is dropped: it cheats"
EVIL = f"[red]no[/red]\x1b[2J\x1b]0;title\x07\n{FORGED}\r\x9b31m\u2028\u202e" + "x" * 3000
JOIN = Join(incarnation=0, samples=32, flops_per_second=1e9, bytes_per_second=1e6)


def harmless(output: str) -> bool:
    lines = output.split("\n")
    return all(line.isprintable() and not line.startswith(FORGED) for line in lines)


# ---- everything that is printed ------------------------------------------------------------------


def test_a_line_in_the_log_is_one_line_whatever_it_quotes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with log_to_file(tmp_path / "server.log"), log_to_console(stderr(), logging.INFO):
        LOG.warning("pi: %s", EVIL)
    for output in (capsys.readouterr().err, (tmp_path / "server.log").read_text()):
        assert harmless(output)
        assert output.count("\n") == 1
        assert r"[red]no[/red]\x1b[2J" in output


def test_a_traceback_in_the_log_forges_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with log_to_file(tmp_path / "server.log"), log_to_console(stderr(), logging.INFO):
        try:
            raise ValueError(EVIL)
        except ValueError:
            LOG.exception("a bug")
    for output in (capsys.readouterr().err, (tmp_path / "server.log").read_text()):
        assert harmless(output)
        assert "ValueError" in output


@pytest.mark.parametrize("console", [stdout, stderr])
def test_a_terminal_gets_no_control_characters_but_richs_own(
    console: Callable[[], Console], capsys: pytest.CaptureFixture[str]
) -> None:
    table = plain_table("name", "what")
    table.add_row("pi", EVIL)
    for what in (Text(EVIL), table):
        console().print(what, soft_wrap=True)
    printed = "".join(capsys.readouterr())
    assert all(line.isprintable() for line in printed.split("\n"))
    assert "[red]no[/red]" in printed


@pytest.mark.parametrize("say", [complain, warn])
def test_an_error_that_quotes_others_looks_like_one_error(
    say: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    say(f"the server said {EVIL}")
    output = capsys.readouterr().err
    assert harmless(output)
    assert f"\n  {FORGED}" in output


def test_errors_under_the_live_table_are_quoted(capsys: pytest.CaptureFixture[str]) -> None:
    errors = DeviceErrors()
    with attached(errors):
        LOG.warning("refused: %s", EVIL, extra={"device": "pi"})
    (shown,) = errors.fresh().values()
    assert harmless(shown)
    lines = drawn(replace(STATE, errors=(shown,)))
    assert harmless("\n".join(lines))


# ---- a live server -------------------------------------------------------------------------------


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with Server(tiny_recipe("fl", deploy={"devices": 1}), tmp_path / "run") as server:
        yield server


def introduced(peer: RawPeer) -> None:
    peer.send(hello("slow"))
    peer.hear("welcome")
    peer.hear("ping")


def fails_early(peer: RawPeer) -> None:
    introduced(peer)
    peer.say(Failed(EVIL))


def fails_late(peer: RawPeer) -> None:
    introduced(peer)
    peer.say(JOIN)
    peer.wait_for(GlobalModel)
    peer.say(Failed(EVIL))


def names_a_tensor(peer: RawPeer) -> None:
    introduced(peer)
    peer.say(JOIN)
    update = wire.ModelUpdate(data=wire.Payload(id=EVIL, nbytes=0))
    peer.send(wire.Frame(head=wire.Head(lane=URGENT, model_update=update)))


def names_itself(peer: RawPeer) -> None:
    peer.send(hello(EVIL))


def speaks_another_version(peer: RawPeer) -> None:
    peer.send(hello(EVIL, schema=99, version=EVIL))


def records(peer: RawPeer) -> None:
    introduced(peer)
    peer.send(wire.Frame(telemetry=wire.Telemetry(first=0, lines=[EVIL])))


def says_what_a_server_says(peer: RawPeer) -> None:
    introduced(peer)
    peer.say(JOIN)
    peer.wait_for(GlobalModel)
    peer.say(Stop(EVIL))


ATTACKS = [
    fails_early,
    fails_late,
    names_a_tensor,
    names_itself,
    speaks_another_version,
    records,
    says_what_a_server_says,
]


@pytest.mark.parametrize("attack", ATTACKS)
def test_what_a_device_says_reaches_the_log_quoted_and_cut(
    server: Server, caplog: pytest.LogCaptureFixture, attack: Callable[[RawPeer], None]
) -> None:
    caplog.set_level(logging.INFO, "fedoptima")
    with RawPeer(server.address) as peer:
        attack(peer)
        until(lambda: any(r.levelno == logging.WARNING for r in caplog.records), "a warning")
        _, why = peer.ending() if attack not in (fails_early, fails_late) else (None, "")
    assert all(harmless(message) and len(message) < 1000 for message in caplog.messages)
    assert harmless(why)
    assert len(why) < 4000


def test_a_device_that_ends_the_run_is_quoted_in_the_reason(tmp_path: Path) -> None:
    recipe = tiny_recipe(
        "fl",
        deploy={"devices": 1},
        training={"batch_size": 8, "on_divergence": "end"},
    )
    with Server(recipe, tmp_path / "run") as server:
        with RawPeer(server.address) as peer:
            introduced(peer)
            peer.say(JOIN)
            peer.wait_for(GlobalModel)
            peer.say(Failed(EVIL, diverged=True))
            stop = peer.wait_for(Stop)[-1]
        with pytest.raises(Exception, match="slow: ") as ended:
            server.result()
    assert isinstance(stop, Stop)
    for said in (stop.reason, str(ended.value)):
        assert harmless(said)
        assert r"slow: '[red]no[/red]\x1b[2J" in said
