"""Runs on a real Ray cluster of two nodes on this machine, one of which is killed.

All tests of this file share the cluster: it takes seconds to start.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import fedoptima
from fedoptima.cli.app import app
from fedoptima.comparison.execution import Order, RunState
from fedoptima.comparison.ray_pool import Home, RayShare, away, run_task, unpack
from fedoptima.comparison.runner import compare, resume_comparison
from fedoptima.core.errors import ConfigError
from fedoptima.experiments.given import Given
from fedoptima.experiments.simulated_run import Interrupted
from fedoptima.experiments.simulation import simulate
from tests.comparison.recipes import CRASHES_ONCE, digests, tiny

METHODS = ("fedasync", "fl")
LOOKS_FOR_A_GPU = """
import os
from pathlib import Path
from torch import nn

def network(classes):
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    Path(__file__).with_name("seen").write_text(visible)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))
"""
LENGTH = "stop.epochs=10"


# In a process of their own (see the Makefile): a cluster's processes are forked from this one, and
# did not start where tests of the network had used gRPC in it before.
pytestmark = pytest.mark.cluster


class Cluster:
    """Two nodes of one CPU each; the second claims to have a GPU."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster as LocalCluster

        small: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 80_000_000}
        head = {**small, "include_dashboard": False}
        self._cluster = LocalCluster(initialize_head=True, head_node_args=head)
        self._other = {**small, "num_gpus": 1}
        self._second = self._cluster.add_node(**self._other)
        self.address: str = self._cluster.address

    def on_second_node(self, folder: Path) -> bool:
        """Whether a worker of that node has a file of the folder open."""
        raylet = self._second.all_processes["raylet"][0].process.pid
        workers = Path(f"/proc/{raylet}/task/{raylet}/children").read_text().split()
        return any(_has_open(int(worker), folder) for worker in workers)

    def kill_second_node(self) -> None:
        self._cluster.remove_node(self._second, allow_graceful=False)

    def replace_second_node(self) -> None:
        self._second = self._cluster.add_node(**self._other)

    def shutdown(self) -> None:
        self._cluster.shutdown()


def _has_open(process: int, folder: Path) -> bool:
    try:
        files = [os.readlink(file) for file in Path(f"/proc/{process}/fd").iterdir()]
    except OSError:  # it has ended, or has just closed one
        return False
    return any(file.startswith(f"{folder}/") for file in files)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    pytest.importorskip("ray", reason="needs Ray: pip install 'fedoptima[ray]'")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        # Ray's workers would give way to all other tests, and take ten times as long.
        patch.setenv("RAY_worker_niceness", "0")
        # Workers find the test's modules and this checkout as this process does.
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
        started = Cluster()
        patch.setenv("RAY_ADDRESS", started.address)
        yield started
        started.shutdown()


def test_a_killed_node_costs_no_run_and_the_table_is_the_pools(
    cluster: Cluster,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    recipe = tiny(tmp_path, LENGTH)
    seen: list[Sequence[RunState]] = []
    killed: list[int] = []  # the run that was executed there, how much had been seen by then

    def kill_a_node_in_the_middle_of_a_run(states: Sequence[RunState]) -> None:
        seen.append(states)
        for index, state in enumerate(states):
            run = tmp_path / f"out/{state.label}-seed1"
            # A checkpoint is not far behind.
            far = state.phase == "training" and state.epochs >= 2
            if not killed and far and cluster.on_second_node(run):
                killed.extend((index, len(seen)))
                cluster.kill_second_node()

    with caplog.at_level(logging.WARNING):
        found = compare(
            recipe,
            methods=METHODS,
            on="ray",
            out=tmp_path / "out",
            checkpoint_every=0.05,
            observer=kill_a_node_in_the_middle_of_a_run,
        )
    cluster.replace_second_node()
    assert killed
    lost, moment = killed
    [message] = [r.getMessage() for r in caplog.records if "worker was lost" in r.getMessage()]
    assert message.startswith(f"{METHODS[lost]} (seed 1): ")
    again = [states[lost].phase for states in seen[moment:]]
    assert "training" in again[again.index("starting") :]
    assert capsys.readouterr().out == ""  # where a result goes, Ray says nothing

    pool = compare(recipe, methods=METHODS, jobs=1)
    assert not found.failed
    assert found.rows == pool.rows
    assert digests(found) == digests(pool)
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        *("comparison.json", "comparison.md", "curves.csv"),
        *(f"{method}-seed1" for method in METHODS),
    }


def test_what_was_stopped_on_a_cluster_is_resumed_there(cluster: Cluster, tmp_path: Path) -> None:
    methods = ["fl", "fedasync", "oafl"]  # the third waits for a CPU
    seen: list[RunState] = []
    on_sigterm: list[object] = [signal.getsignal(signal.SIGTERM)]

    def watch(states: Sequence[RunState]) -> None:
        seen[:] = states
        on_sigterm.append(signal.getsignal(signal.SIGTERM))

    with pytest.raises(Interrupted):
        compare(
            tiny(tmp_path, "stop.epochs=500"),
            methods=methods,
            on="ray",
            out=tmp_path / "out",
            observer=watch,
            interrupted=lambda: any(state.phase == "training" for state in seen),
        )
    assert {state.phase for state in seen} == {"stopped"}
    assert len(set(on_sigterm)) == 1  # it still asks to stop, though Ray would like to have it
    assert any(folder.is_dir() for folder in (tmp_path / "out").glob("*/checkpoints"))
    assert not (tmp_path / "out/oafl-seed1").exists()

    with pytest.raises(Interrupted):
        resume_comparison(
            tmp_path / "out",
            on="ray",
            observer=watch,
            interrupted=lambda: any(state.phase == "training" for state in seen),
        )
    assert "oafl" in [state.label for state in seen]


def test_a_worker_that_dies_is_replaced_as_often_as_asked_for(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mortal.py").write_text(CRASHES_ONCE)
    monkeypatch.syspath_prepend(tmp_path)
    recipe = tiny(tmp_path, "model.name=mortal:network")
    [row] = compare(recipe, methods="fl", dry=True, on=RayShare(retries=0)).rows
    assert "its worker was lost" in row.errors[1]
    (tmp_path / "mark").unlink()
    [row] = compare(recipe, methods="fl", dry=True, on=RayShare(retries=1)).rows
    assert row.mean is not None


def test_a_run_gets_its_share_of_a_gpu_and_no_other_run_sees_one(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "looks.py").write_text(LOOKS_FOR_A_GPU)
    monkeypatch.syspath_prepend(tmp_path)
    recipe = tiny(tmp_path, "model.name=looks:network")
    seen = tmp_path / "seen"
    for gpus, visible in ((0.5, "0"), (0.0, "")):
        assert not compare(recipe, methods="fl", dry=True, on=RayShare(gpus=gpus)).failed
        assert seen.read_text() == visible


def test_a_run_that_no_node_has_room_for_is_warned_of(
    cluster: Cluster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(Interrupted), caplog.at_level(logging.WARNING):
        compare(
            tiny(tmp_path), methods="fl", dry=True, on=RayShare(cpus=64), interrupted=lambda: True
        )
    assert "no machine of the cluster has room for a run (64 CPUs, 0 GPUs" in caplog.text


def test_the_command_line_runs_a_sweep_on_a_cluster(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny(tmp_path)
    monkeypatch.chdir(tmp_path)
    words = ["sweep", "tiny.toml", "--vary", "fleet.scale=1,0.5", "--dry", "--out", "out"]
    answer = CliRunner().invoke(app, [*words, "--on", "ray", "--cpus", "0.5", "--retries", "1"])
    assert answer.exit_code == 0
    assert "fedoptima, fleet.scale=0.5 (seed 1): done" in answer.stderr
    assert Path("out/sweep.csv").read_text().count("\n") == 3


# ---- without a cluster -----------------------------------------------------------------------


class SilentLine:
    """``stops``: once the run trains."""

    def __init__(self, *, stops: bool) -> None:
        self._stops = stops
        self._training = False

    def send(self, state: RunState) -> None:
        self._training = state.phase == "training"

    def stopped(self) -> bool:
        return self._stops and self._training


def test_where_the_folder_is_not_seen_the_run_comes_back_and_can_be_resumed(tmp_path: Path) -> None:
    recipe = tiny(tmp_path, "method.name=fl", "stop.epochs=5")
    there = tmp_path / "out" / "fl-seed1"
    there.parent.mkdir()
    order = Order(recipe, there, dry=False, checkpoint_every=60.0)
    state, files = away(order, None, SilentLine(stops=True), Given())
    assert state.phase == "stopped"
    assert not there.exists()
    unpack(files, there)
    assert any((there / "checkpoints").iterdir())
    state, files = away(order, files, SilentLine(stops=False), Given())
    assert state.phase == "done"
    unpack(files, there)
    assert not (there / "checkpoints").exists()  # it took the place of what was there
    assert [path.name for path in there.parent.iterdir()] == ["fl-seed1"]
    simulate(recipe, out=tmp_path / "direct")
    direct = (tmp_path / "direct/summary.json").read_text()
    assert (there / "summary.json").read_text() == direct.replace("/direct", "/out/fl-seed1")


def test_a_machine_with_another_version_says_so(tmp_path: Path) -> None:
    order = Order(tiny(tmp_path), tmp_path / "run", dry=True, checkpoint_every=60.0)
    home = Home(tmp_path / "mark", tmp_path, data=None, modules=())
    state, files = run_task("0.0.1", 0, order, home, None, mailbox=None, given=Given())
    assert state.phase == "failed"
    assert f"has fedoptima {fedoptima.__version__} and not 0.0.1; install the same" in str(
        state.error
    )
    assert files is None


@pytest.mark.parametrize(
    ("changes", "share", "message"),
    [
        (["device=cuda:1"], RayShare(), "Ray chooses the GPU; use 'cuda'"),
        (["device=cuda"], RayShare(gpus=0), "give its runs a share of it"),
        (["device=cuda"], RayShare(gpus=1.5), "Ray shares one GPU, or gives whole ones"),
        ([], RayShare(cpus=0), "a run needs some of a CPU"),
        ([], RayShare(cpus=-1), "nothing is below 0"),
    ],
)
def test_a_share_that_cannot_work_is_refused(
    tmp_path: Path, changes: list[str], share: RayShare, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        share.for_recipe(tiny(tmp_path, *changes))


def test_a_run_takes_its_threads_and_a_gpu_only_if_it_uses_one(tmp_path: Path) -> None:
    assert RayShare().for_recipe(tiny(tmp_path, "threads=2")) == RayShare(2.0, 0.0)
    assert RayShare().for_recipe(tiny(tmp_path, "device=cuda")) == RayShare(1.0, 1.0)
    assert RayShare(gpus=0.25).for_recipe(tiny(tmp_path, "device=cuda")).gpus == 0.25
