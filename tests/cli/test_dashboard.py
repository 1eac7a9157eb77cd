from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from urllib.request import urlopen

import pytest

from fedoptima.cli.commands.dashboard import page_beside
from fedoptima.core.errors import ConfigError
from fedoptima.dashboard.server import address_of, open_socket
from tests.cli.conftest import Call
from tests.dashboard.folders import write_run
from tests.dashboard.stories import story

Start = Callable[..., "subprocess.Popen[str]"]
TOKEN = "a-token-that-nobody-guesses"


def fetched(address: str) -> dict[str, object]:
    with urlopen(address, timeout=120) as answer:
        found: dict[str, object] = json.loads(answer.read())
    return found


def test_a_process_shows_the_runs_of_a_folder(tmp_path: Path, start: Start) -> None:
    write_run(tmp_path / "runs" / "first", story())
    process = start("dashboard", "runs", "--port", "0", "--token", TOKEN)
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        assert line.startswith("runs in runs: http://127.0.0.1:")
        address, _, rest = line.removeprefix("runs in runs: ").partition("?")
        assert rest.startswith(f"token={TOKEN} ")
        runs = fetched(f"{address}api/runs?token={TOKEN}")["runs"]
        assert [run["name"] for run in runs] == ["first"]  # type: ignore[attr-defined]
        process.send_signal(signal.SIGINT)
        assert process.wait(120) in (0, 130)
        assert "Traceback" not in process.stderr.read()
    finally:
        process.kill()
        process.communicate()


def test_the_page_beside_a_run_ends_with_its_pipe(tmp_path: Path) -> None:
    """Begun before the run's folder is there."""
    folder = tmp_path / "later"
    with page_beside(folder, 0) as address:
        assert address is not None
        assert fetched(f"{address}api/runs")["single"] is True
        write_run(folder, story())
        now = fetched(f"{address}api/state?run=later")["now"]
        assert now["records"] == len(story())  # type: ignore[index]
        port = int(address.rstrip("/").rpartition(":")[2])
    with (
        suppress(ConnectionError),  # it has ended already
        socket.create_connection(("127.0.0.1", port), timeout=120) as connection,
    ):
        assert connection.recv(1) == b""  # closed when the process ended


def test_no_page_is_started_unless_asked_for(tmp_path: Path) -> None:
    with page_beside(tmp_path, None) as address:
        assert address is None


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["nowhere"], "nowhere: no such folder; name a run's, or one that holds runs"),
        ([".", "--host", "0.0.0.0"], "give a --token"),
        ([".", "--token", "short"], "too few, at least 16"),
        (
            [".", "--host", "no.such.host.invalid", "--token", TOKEN],
            "cannot listen on no.such.host",
        ),
    ],
)
def test_what_cannot_work_is_said_with_the_way_out(
    call: Call, arguments: list[str], complaint: str
) -> None:
    answer = call("dashboard", *arguments)
    assert answer.code == 2
    assert complaint in answer.complaint


def test_a_port_that_is_taken_is_found_before_a_run_begins(call: Call, recipe: Path) -> None:
    with open_socket("127.0.0.1", 0) as taken:
        port = str(taken.getsockname()[1])
        answer = call("run", recipe, "--devices", "1", "--dashboard", port, "--out", "here")
    assert answer.code == 2
    assert f"error: --dashboard {port}: cannot listen on 127.0.0.1 (Address already in use); " in (
        answer.complaint
    )
    assert not os.path.exists("here")


def test_an_address_names_a_host_that_can_be_opened() -> None:
    with open_socket("127.0.0.1", 0) as here, open_socket("0.0.0.0", 0) as anywhere:
        assert address_of(here) == f"http://127.0.0.1:{here.getsockname()[1]}/"
        assert "0.0.0.0" not in address_of(anywhere, "t")
        assert address_of(anywhere, "t").endswith("/?token=t")


def test_a_port_out_of_range_is_a_usage_error(call: Call) -> None:
    assert call("dashboard", ".", "--port", "70000").code == 2


def test_listening_where_nobody_can_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match=r"--port 0: cannot listen on 192\.0\.2\.1 "):
        open_socket("192.0.2.1", 0)
