"""A run's folder belongs to its owner, and a resumed run stays inside it."""

from __future__ import annotations

import json
import os
import shutil
from contextlib import ExitStack
from pathlib import Path

import pytest

import fedoptima
from fedoptima.core.errors import ConfigError, RunFailed
from fedoptima.experiments.run_directory import RunDirectory, make_folder
from fedoptima.trace.run_folder import write_whole
from tests.experiments.runs import data, network, run
from tests.support.network import Server, tiny_recipe

RUN = {"fleet": "uniform", "training": {"batch_size": 8}, "epochs": 0.5, "threads": 1}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "deep" / "run"
    old = os.umask(0)
    try:
        fedoptima.simulate(model=network(), train=data(), test=data(48, seed=1), out=out, **RUN)
    finally:
        os.umask(old)
    return out


def test_a_run_folder_is_for_its_owner_alone(finished: Path, tmp_path: Path) -> None:
    assert finished.stat().st_mode & 0o777 == 0o700
    make_folder(tmp_path / "compared")
    assert (tmp_path / "compared").stat().st_mode & 0o777 == 0o700
    given = tmp_path / "given"
    given.mkdir(mode=0o755)
    make_folder(given)  # the user's own choice
    assert given.stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize(
    "name", ["metrics.csv", "trace.jsonl.gz", "summary.tmp", "checkpoints", "logs", "devices/a"]
)
def test_a_folder_with_a_link_in_it_is_not_resumed(
    finished: Path, tmp_path: Path, name: str
) -> None:
    run = shutil.copytree(finished, tmp_path / "run")
    (run / "summary.json").unlink()
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "000000000001").mkdir()  # as a checkpoint is called
    link = run / name
    link.parent.mkdir(exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(precious)
    with pytest.raises(ConfigError, match=rf"{name}: is a link, and links in a run's folder are"):
        fedoptima.resume(run, model=network(), train=data(), test=data(48, seed=1))
    with pytest.raises(ConfigError, match="is a link"):
        fedoptima.replay(run)
    assert [path.name for path in precious.iterdir()] == ["000000000001"]


def test_a_key_that_is_unknown_here_is_told_with_the_version_that_wrote_it(
    finished: Path, tmp_path: Path
) -> None:
    run = shutil.copytree(finished, tmp_path / "run")
    plain = json.loads((run / "config.json").read_text())
    del plain["sha256"]
    plain["recipe"]["training"]["flavour"] = 3
    plain["versions"]["fedoptima"] = "99.1"
    (run / "config.json").write_text(json.dumps(plain))
    with pytest.raises(
        ConfigError, match=r"flavour: unknown key.*; fedoptima 99\.1 has written it"
    ):
        fedoptima.resume(run, model=network(), train=data(), test=data(48, seed=1))


def test_a_run_that_another_process_executes_is_refused_or_waited_for(tmp_path: Path) -> None:
    with ExitStack() as other:
        other.enter_context(RunDirectory(tmp_path).taken())
        with (
            pytest.raises(ConfigError, match="another process is executing this run"),
            RunDirectory(tmp_path).taken(),
        ):
            pass
        asked: list[bool] = []

        def wait() -> bool:
            asked.append(True)
            other.close()  # it ends
            return True

        with RunDirectory(tmp_path).taken(wait):
            assert asked == [True]


def test_a_run_that_was_killed_before_it_was_described_has_not_begun(tmp_path: Path) -> None:
    (tmp_path / "config.tmp").write_text("{")
    RunDirectory.check_free(tmp_path)
    (tmp_path / "mine.txt").touch()
    with pytest.raises(ConfigError, match="exists already"):
        RunDirectory.check_free(tmp_path)


def test_only_where_a_run_is_unfinished_is_resuming_it_offered(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").touch()
    for name, offered in (("notes.md", False), ("config.json", True), ("summary.json", False)):
        (tmp_path / name).touch()
        with pytest.raises(ConfigError, match="exists already") as error:
            RunDirectory.check_free(tmp_path)
        assert ("--resume" in str(error.value)) is offered


def test_no_two_processes_that_serve_a_run_have_the_same_number(tmp_path: Path) -> None:
    """Whatever their checkpoints have forgotten: it is on disk before it is used."""
    directory = RunDirectory(tmp_path)
    assert [directory.begin_process(known) for known in (None, 0, 0, 6, 2)] == [0, 1, 2, 7, 8]
    (tmp_path / "starts").write_text("no number")
    assert directory.begin_process(3) == 4
    assert directory.begin_process(None) == 0  # no checkpoint was saved: it begins anew


def test_they_have_not_either_where_the_disk_has_no_room_for_another_file(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    assert [directory.begin_process(known) for known in (None, 8)] == [0, 9]
    (tmp_path / "starts.tmp").mkdir()  # in the way of the new file, as a full disk would be
    assert [directory.begin_process(0) for _ in range(2)] == [10, 11]


def test_a_result_is_on_disk_before_the_checkpoints_go(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a power cut a run that is over can be read, or it is not over."""
    run = RunDirectory(shutil.copytree(finished, tmp_path / "run"))
    result = run.read_result()
    run.checkpoints.mkdir()
    synced: list[tuple[int, bool]] = []

    def fsync(descriptor: int) -> None:
        synced.append((os.fstat(descriptor).st_ino, run.checkpoints.exists()))

    monkeypatch.setattr(os, "fsync", fsync)
    run.write_result(result)
    files = [path.stat().st_ino for path in (run.model, run.summary, run.path)]
    assert [each for each in synced if each[0] in files] == [(inode, True) for inode in files]
    assert not run.checkpoints.exists()


@pytest.mark.parametrize("over", [True, False])
def test_checkpoints_that_a_kill_at_the_end_has_left_do_not_count_when_it_is_extended(
    finished: Path, tmp_path: Path, over: bool
) -> None:
    path = shutil.copytree(finished, tmp_path / "run")
    (path / "checkpoints" / "000000000001").mkdir(parents=True)
    if not over:
        (path / "summary.json").unlink()
    run, recipe, _ = RunDirectory.open(path)
    run.extend(recipe)
    assert not run.over
    assert run.saved == (run.last_state if over else run.checkpoints)


class AskedAtOnce(RunDirectory):
    """Its operator wants it to end as soon as somebody has it."""

    def _lock(self, descriptor: int) -> bool:
        taken = super()._lock(descriptor)
        write_whole(self.control, "stop")
        return taken


def test_only_a_wish_that_was_meant_for_another_process_is_forgotten(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    run.config.touch()
    write_whole(run.control, "pause")
    with run.taken():
        assert run.wish() is None
    with AskedAtOnce(tmp_path).taken():
        assert run.wish() == "stop"
        assert run.wish() is None


def test_a_run_whose_folder_is_removed_ends_and_says_so(tmp_path: Path) -> None:
    path, asked = tmp_path / "run", 0

    def remove() -> bool:
        nonlocal asked
        asked += 1
        if asked == 40:
            path.rename(tmp_path / "one")
        return False

    with pytest.raises(RunFailed, match="run: was removed while the run was going on"):
        run(out=path, interrupted=remove, epochs=10_000)
    with Server(tiny_recipe("fl", stop={"epochs": 10_000}), path) as server:
        path.rename(tmp_path / "other")
        with pytest.raises(RunFailed, match="run: was removed while the run was going on"):
            server.result()
