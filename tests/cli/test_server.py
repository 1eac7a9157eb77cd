"""``fedoptima server``: what it shows of a run, and what it refuses before anything is done."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedoptima.config.load import load_recipe
from fedoptima.experiments.run_directory import RunDirectory
from fedoptima.experiments.server_setup import prepare_server
from fedoptima.experiments.setup import prepare
from fedoptima.runtime.address import Address
from fedoptima.runtime.security.certificates import make_authority
from tests.cli.conftest import Call
from tests.support.network import Work, start_device
from tests.support.processes import free_port

RECIPE = """
name = "tiny"
threads = 1
split.at = 1
model.name = "tests.e2e.tiny:model"
data = { name = "tests.e2e.tiny:data", partition = { kind = "iid" } }
training = { batch_size = 8 }
stop.epochs = 3
fleet.server.gflops = 1

[[fleet.devices]]
name = "pi"
count = 2
gflops = 0.1
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.toml"
    path.write_text(RECIPE)
    return path


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def devices(tmp_path: Path, port: int) -> Iterator[list[Work]]:
    """Two devices that look for a server, in threads of this process."""
    server = Address("127.0.0.1", port)
    works = [start_device(name, server, tmp_path / "states") for name in ("pi-1", "pi-2")]
    yield works
    for work in works:
        work.join(180)
        assert not work.is_alive()


def test_it_leads_a_run_and_says_what_an_operator_would_want_to_know(
    call: Call, recipe: Path, port: int, devices: list[Work]
) -> None:
    answer = call("server", recipe, "--listen", f"127.0.0.1:{port}", "--run-dir", "run")
    assert answer.code == 0
    assert "tiny: fedoptima, seed 1 - 3 epochs done" in answer.words
    assert "virtual" not in answer.words
    assert " time " in answer.words
    assert "results in run" in answer.words
    for said in (
        "tiny: fedoptima, seed 1, in run",
        f"listening on 127.0.0.1:{port}, without certificates",
        "pi-1 connected from 127.0.0.1:",
        "pi-2 joined: 48 samples,",
        "GFLOP/s, uplink",
        "planned for 2 devices: 1 of 3 blocks are on the devices, up to 0, with an auxiliary",
        "pi-1 left",
    ):
        assert said in answer.complaint
    assert "listening on" in Path("run/logs/server.log").read_text()
    assert [device.answer() for device in devices] == ["3 epochs done"] * 2


def test_quiet_means_nothing_but_the_result(
    call: Call, recipe: Path, port: int, devices: list[Work]
) -> None:
    listen = ("--listen", f"127.0.0.1:{port}")
    answer = call("server", recipe, *listen, "--run-dir", "run", "--quiet", "--json")
    assert (answer.code, answer.err) == (0, "")
    assert json.loads(answer.out)["reason"] == "3 epochs done"
    assert "pi-1 joined" in Path("run/logs/server.log").read_text()

    over = call("server", "--resume", "--run-dir", "run", *listen, "--linger", "0", "--json")
    assert over.code == 0  # a service that is started again has nothing to complain about
    assert json.loads(over.out)["reason"] == "3 epochs done"


def test_a_port_that_is_taken_is_said_to_be_and_leaves_no_folder(call: Call, recipe: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        answer = call("server", recipe, "--listen", listen, "--run-dir", "run")
    assert answer.code == 2
    assert f"error: --listen {listen}: cannot be listened on (Address already in use)" in (
        answer.complaint
    )
    assert "choose another port" in answer.complaint
    assert not Path("run").exists()


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--listen", "0.0.0.0:50051"], "fedoptima certs init"),
        (["--listen", "50051"], "write it as HOST:PORT"),
        (["--tls-ca", "ca.pem"], "--tls-cert and --tls-key missing"),
        (["--insecure", "--tls-ca", "a", "--tls-cert", "b", "--tls-key", "c"], "contradicts"),
        (["--tls-ca", "a", "--tls-cert", "b", "--tls-key", "c"], "a: "),
        (["--resume"], "--resume needs --run-dir"),
        (["--allow-devices", "none.txt"], "none.txt: cannot be read: No such file"),
        (["--revoked", "none.txt"], "--revoked lists certificates, and this server asks for none"),
        (["--devices", "0"], "Invalid value for '--devices'"),
        (["--run-dir", "taken"], "--run-dir taken: exists already"),
    ],
)
def test_what_cannot_work_is_said_at_once(
    call: Call, recipe: Path, options: list[str], complaint: str
) -> None:
    Path("taken").mkdir()
    Path("taken/something").touch()
    answer = call("server", recipe, *options)
    assert answer.code == 2
    assert complaint in answer.complaint
    assert not Path("runs").exists()


def test_without_a_recipe_it_says_how(call: Call) -> None:
    answer = call("server")
    assert answer.code == 2
    assert "no RECIPE; for example: fedoptima server" in answer.complaint


def test_a_run_is_resumed_only_as_it_was_begun(call: Call, recipe: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    kept = {"recipe": {"name": "tiny", "model": {"name": "vgg5"}, "data": {"name": "digits"}}}
    kept["recipe"]["stop"] = {"rounds": 1}
    (run / "config.json").write_text(json.dumps({**kept, "dry": False}))
    answer = call("server", recipe, "--resume", "--run-dir", run)
    assert answer.code == 2
    assert "was started with another recipe (threads is" in answer.complaint
    assert "leave RECIPE and its options out" in answer.complaint


@pytest.mark.parametrize("with_recipe", [True, False])
def test_what_is_wrong_with_the_runs_folder_is_not_said_of_the_recipe(
    call: Call, recipe: Path, with_recipe: bool
) -> None:
    directory = RunDirectory.create(Path("run"), prepare_server(load_recipe(recipe)).describe())
    given = [recipe] if with_recipe else []
    with directory.taken():
        answer = call("server", *given, "--resume", "--run-dir", "run", "--allow-module", "tests")
    assert answer.code == 2
    assert "error: run: another process is executing this run" in answer.complaint


def test_a_run_is_resumed_by_what_it_was_begun_with(call: Call, recipe: Path) -> None:
    """A simulation's checkpoints are no server's; nothing is touched."""
    over_network = prepare_server(load_recipe(recipe)).describe()
    RunDirectory.create(Path("real"), over_network)
    RunDirectory.create(Path("sim"), prepare(load_recipe(recipe)).describe(dry=False))
    allowed = ("--allow-module", "tests")
    for command in (["server", "--resume", "--run-dir", "sim"], ["run", "--resume", "sim"]):
        answer = call(*command, *allowed)
        assert answer.code == 2
        assert "error: sim: is a simulation; `fedoptima simulate` resumes it" in answer.complaint
    answer = call("simulate", "--resume", "real", *allowed)
    assert answer.code == 2
    assert "error: real: is a run over the network; `fedoptima run` and" in answer.complaint
    assert [path.name for path in Path("sim").iterdir()] == ["config.json"]


def test_there_is_nothing_to_resume(call: Call) -> None:
    answer = call("server", "--resume", "--run-dir", "nowhere")
    assert answer.code == 2
    assert "error: --run-dir nowhere: there is no run to resume" in answer.complaint


def test_a_certificate_for_another_host_is_warned_of(
    call: Call, recipe: Path, tmp_path: Path
) -> None:
    own = make_authority(tmp_path / "certs", ["train.example.org"], days=2)
    files = ("--tls-ca", tmp_path / "certs/ca.pem", "--tls-cert", own.cert, "--tls-key", own.key)
    with socket.create_server(("127.0.0.1", 0)) as taken:  # so that it ends at once
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        answer = call("server", recipe, "--listen", listen, *files)
    assert "warning:" in answer.complaint
    assert "is good for train.example.org" in answer.complaint
