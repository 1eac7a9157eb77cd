"""Reading is not executing: no command runs code because a file or a server names it."""

from __future__ import annotations

import gzip
import json
import logging
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fedoptima.comparison.runner import resume_comparison
from fedoptima.comparison.spec import describe
from fedoptima.config.load import load_recipe
from fedoptima.core.errors import ConfigError
from fedoptima.dashboard.folder import Runs
from fedoptima.dashboard.reader import RunReader
from fedoptima.experiments.given import Given
from fedoptima.experiments.join import join
from fedoptima.experiments.serve import serve
from fedoptima.experiments.simulation import resume, simulate
from fedoptima.verification.replay import re_execute, replay
from tests.cli.conftest import TINY, Call
from tests.support.network import Server, tiny_recipe, until

REFUSED = "model.name = 'foreign.code:build': this code is named by a file or a server"


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    parent = tmp_path_factory.mktemp("honest")
    recipe = parent / "tiny.toml"
    recipe.write_text(TINY.replace("stop.epochs = 1", "stop.epochs = 0.2"))
    simulate(load_recipe(recipe), threads=1, out=parent / "run")
    return parent / "run"


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], bool]:
    """Whether the foreign code has run since the last question."""
    package, mark = tmp_path / "foreign", tmp_path / "it_ran"
    package.mkdir()
    note = f"open({str(mark)!r}, 'w').close()\n"
    (package / "__init__.py").write_text(note)
    (package / "code.py").write_text(f"{note}def build():\n    {note}")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    for name in ("foreign", "foreign.code"):
        monkeypatch.delitem(sys.modules, name, raising=False)

    def asked() -> bool:
        found = mark.exists()
        mark.unlink(missing_ok=True)
        return found

    return asked


@pytest.fixture
def run(honest: Path, tmp_path: Path) -> Path:
    """A finished run whose files name foreign code."""
    folder = shutil.copytree(honest, tmp_path / "run")
    config = json.loads((folder / "config.json").read_text())
    config["recipe"]["model"] = {"name": "foreign.code:build"}
    del config["sha256"]  # the change is meant
    (folder / "config.json").write_text(json.dumps(config))
    trace = folder / "trace.jsonl.gz"
    with gzip.open(trace, "rt") as file:
        _, *records = file.readlines()
    with gzip.open(trace, "wt") as file:
        file.writelines([json.dumps(config) + "\n", *records])
    return folder


@pytest.fixture
def unfinished(run: Path) -> Path:
    (run / "summary.json").unlink()
    return run


def over_the_network(run: Path) -> None:
    """As if it were one of these."""
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps(config | {"mode": "network"}))


def test_reading_a_run_is_not_executing_it(call: Call, run: Path, ran: Callable[[], bool]) -> None:
    for command in ("report", "replay", "trace"):
        assert call(command, run).code == 0
    runs = Runs.at(run)
    assert RunReader(runs, runs.all()[0]).look({0}).sections  # what the page shows
    assert not ran()
    assert "--allow-module foreign" in Path("report.html").read_text()


def test_a_report_of_a_lone_trace_with_os_system_executes_nothing(
    call: Call, run: Path, tmp_path: Path
) -> None:
    trace = run / "trace.jsonl.gz"
    with gzip.open(trace, "rt") as file:
        head, *records = file.readlines()
    header = json.loads(head)
    header["recipe"]["model"] = {"name": "os:system", "command": f"touch {tmp_path / 'it_ran'}"}
    lone = tmp_path / "lone.jsonl.gz"
    with gzip.open(lone, "wt") as file:
        file.writelines([json.dumps(header) + "\n", *records])
    for allowed in ((), ("--allow-module", "os"), ("--allow-module", "posix")):
        answer = call("report", lone, *allowed)
        assert answer.code == 0
        assert "model.name = 'os:system'" in answer.words
    assert not (tmp_path / "it_ran").exists()


def test_weights_are_replayed_with_code_that_is_allowed(
    call: Call, run: Path, ran: Callable[[], bool]
) -> None:
    answer = call("replay", run, "--weights")
    assert (answer.code, ran()) == (2, False)
    assert REFUSED in answer.complaint
    for again in (lambda: replay(run, weights=True), lambda: re_execute(run)):
        with pytest.raises(ConfigError, match="allow_modules"):
            again()
    assert not ran()
    answer = call("replay", run, "--weights", "--allow-module", "foreign")
    assert (answer.code, ran()) == (2, True)
    assert "returned NoneType, not a torch.nn.Module" in answer.complaint


@pytest.mark.parametrize(
    "command",
    [("simulate", "--resume"), ("run", "--resume"), ("server", "--resume", "--run-dir")],
)
def test_a_run_is_resumed_with_code_that_is_allowed(
    call: Call, unfinished: Path, ran: Callable[[], bool], command: tuple[str, ...]
) -> None:
    if command[0] != "simulate":
        over_the_network(unfinished)
    answer = call(*command, unfinished)
    assert (answer.code, ran()) == (2, False)
    assert REFUSED in answer.complaint
    answer = call(*command, unfinished, "--allow-module", "foreign.code")
    assert (answer.code, ran()) == (2, True)
    assert "returned NoneType" in answer.complaint


def test_resuming_from_python_takes_the_same_leave(
    unfinished: Path, ran: Callable[[], bool]
) -> None:
    with pytest.raises(ConfigError, match="allow_modules"):
        resume(unfinished)
    assert not ran()
    with pytest.raises(ConfigError, match="NoneType"):
        resume(unfinished, allow_modules=["foreign"])


def test_serving_again_from_python_takes_the_same_leave(
    unfinished: Path, ran: Callable[[], bool]
) -> None:
    over_the_network(unfinished)
    with pytest.raises(ConfigError, match="allow_modules"):
        serve(out=unfinished, resume=True, listen="127.0.0.1:0")
    assert not ran()
    with pytest.raises(ConfigError, match="NoneType"):
        serve(out=unfinished, resume=True, listen="127.0.0.1:0", allow_modules=["foreign"])


def test_a_server_resumes_a_folder_only_with_the_recipe_that_it_is_given(
    call: Call, unfinished: Path, ran: Callable[[], bool], recipe: Path
) -> None:
    """The user's own recipe may name any code; the folder's is not taken for it."""
    answer = call("server", recipe, "--resume", "--run-dir", unfinished)
    assert (answer.code, ran()) == (2, False)
    assert "was started with another recipe" in answer.complaint


def test_a_comparison_is_resumed_with_code_that_is_allowed(
    unfinished: Path, recipe: Path, ran: Callable[[], bool], tmp_path: Path
) -> None:
    about = describe(
        load_recipe(recipe, ["model={name='foreign.code:build'}"]),
        Given(),
        methods=["fedoptima", "fl"],
        seeds=None,
        options={},
        dry=False,
        target=None,
        command=None,
    )
    folder = tmp_path / "compared"
    folder.mkdir()
    (folder / "comparison.json").write_text(json.dumps({"about": about.to_json()}))
    shutil.copytree(unfinished, folder / "fedoptima-seed1")  # one was begun, one is missing
    refused = resume_comparison(folder, jobs=1)
    assert not ran()
    assert all(REFUSED in str(run.error) for run in refused.runs)
    assert len(refused.runs) == 2
    allowed = resume_comparison(folder, jobs=1, allow_modules=["foreign"])
    assert ran()
    assert all("NoneType" in str(run.error) for run in allowed.runs)


def test_a_device_refuses_code_that_its_server_names_and_both_sides_say_so(
    call: Call, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    recipe = tiny_recipe("fedoptima", deploy={"devices": 1})
    with Server(recipe, tmp_path / "run") as server:
        where = ("--server", str(server.address), "--state", tmp_path / "states", "--name", "fast")
        with caplog.at_level(logging.INFO, "fedoptima.server"):
            answer = call("device", *where)
            assert answer.code == 2
            assert "data.name = 'tests.e2e.tiny:data': this code is named" in answer.complaint
            assert "--allow-module tests" in answer.complaint
            until(lambda: "fast left" in caplog.text, "the server has seen it go")
            with pytest.raises(ConfigError, match="allow_modules"):
                join(str(server.address), name="fast", state=tmp_path / "states")
            until(lambda: caplog.text.count("fast left") == 2, "it has gone again")
        heard = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
        assert len(heard) == 2
        assert heard[0].startswith("fast: device failed: ")
        assert "'tests.e2e.tiny:data': this code is named" in heard[0]
        ended = join(
            str(server.address), name="fast", state=tmp_path / "states", allow_modules=["tests"]
        )
        assert ended == server.result().reason
