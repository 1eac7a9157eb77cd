"""A run over the network from Python alone: `fedoptima.serve` and `fedoptima.join`."""

from __future__ import annotations

import logging
import re
from functools import partial
from pathlib import Path
from threading import Event

import pytest

import fedoptima
from fedoptima import ConfigError, Interrupted
from fedoptima.experiments.run_directory import RunDirectory
from fedoptima.trace.run_folder import write_whole
from tests.support.network import DEADLINE, NAMES, Work, tiny_recipe, until

ANYWHERE = "127.0.0.1:0"


class Serving:
    """A server in a thread, by the public function."""

    def __init__(self, **options: object) -> None:
        self.address = ""
        self._ready, self.stop = Event(), Event()
        self.work = Work(lambda: fedoptima.serve(**self._with_hooks(options)), "server")  # type: ignore[arg-type]
        self.work.start()

    def _with_hooks(self, options: dict[str, object]) -> dict[str, object]:
        return {**options, "ready": self._listens, "interrupted": self.stop.is_set}

    def _listens(self, address: str) -> None:
        self.address = address
        self._ready.set()

    def join_all(self, folder: Path) -> list[object]:
        assert self._ready.wait(DEADLINE)
        join = partial(fedoptima.join, self.address, state=folder, allow_modules=["tests"])
        devices = [Work(partial(join, name=name), name) for name in NAMES]
        for device in devices:
            device.start()
        return [device.answer() for device in devices]


def test_a_run_is_served_and_joined_stopped_and_resumed(tmp_path: Path) -> None:
    recipe, out = tiny_recipe("fl", stop={"rounds": 2}, threads=1), tmp_path / "run"
    first = Serving(recipe=recipe, out=out, listen="127.0.0.1:0")
    assert first._ready.wait(DEADLINE)
    first.stop.set()
    with pytest.raises(Interrupted):
        first.work.answer()

    with pytest.raises(ConfigError, match="was started with another recipe"):
        fedoptima.serve(tiny_recipe("oafl"), out=out, resume=True)
    second = Serving(out=out, resume=True, listen="127.0.0.1:0", allow_modules=["tests"])
    answers = second.join_all(tmp_path / "states")
    result = second.work.answer()
    assert isinstance(result, fedoptima.Result)
    assert answers == [result.reason] * 3
    assert result.rounds == 2
    again = fedoptima.serve(out=out, resume=True)  # it is over: nothing is served
    assert again.weights_digest == result.weights_digest


@pytest.mark.parametrize("method", ["fedoptima", "fl"])
def test_a_finished_run_goes_on_when_it_is_extended(
    method: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="fedoptima.server")
    recipe, out = tiny_recipe(method, stop={"epochs": 1.0}), tmp_path / "run"
    first = Serving(recipe=recipe, out=out, listen="127.0.0.1:0")
    first.join_all(tmp_path / "states")
    begun = first.work.answer()
    assert isinstance(begun, fedoptima.Result)

    second = Serving(recipe=recipe, out=out, resume=True, extend={"epochs": 2}, listen=ANYWHERE)
    second.join_all(tmp_path / "states")
    result = second.work.answer()
    assert isinstance(result, fedoptima.Result)
    assert result.reason == "2 epochs done"
    assert result.curve[: len(begun.curve)] == begun.curve
    assert re.search(r"resuming from the checkpoint after [0-9.]+ s of training", caplog.text)
    found = fedoptima.replay(out, weights=True, allow_modules=["tests"])
    assert found.identical, found
    again = fedoptima.serve(recipe, out=out, resume=True)  # the recipe that it began with
    assert again.weights_digest == result.weights_digest


def test_a_run_is_stopped_and_paused_from_outside(tmp_path: Path) -> None:
    out = tmp_path / "run"
    recipe = tiny_recipe("fedoptima", stop={"epochs": 100_000.0})
    serving = Serving(recipe=recipe, out=out, listen=ANYWHERE)
    joining = Work(partial(serving.join_all, tmp_path / "states"), "devices")
    joining.start()
    run = RunDirectory(out)
    until(lambda: len(list(run.metrics.open())) > 2 if run.metrics.exists() else None, "trained")
    assert run.executed
    write_whole(run.control, "pause")
    with pytest.raises(Interrupted):
        serving.work.answer()
    assert not run.over
    assert not run.executed

    again = Serving(out=out, resume=True, listen=ANYWHERE, allow_modules=["tests"])
    assert again._ready.wait(DEADLINE)
    write_whole(run.control, "stop")
    result = again.work.answer()
    assert isinstance(result, fedoptima.Result)
    assert result.reason == "stopped by its operator"
    assert run.over
    assert fedoptima.replay(out, allow_modules=["tests"]).identical


def test_labels_of_pixels_and_a_metric_of_the_users_own_cross_the_network(tmp_path: Path) -> None:
    home = "tests.experiments.pixels"
    recipe = tiny_recipe(
        "fedoptima",
        model={"name": f"{home}:model"},
        data={
            "name": f"{home}:data",
            "partition": {"kind": "iid"},
            "device_validation": 0.25,
        },
        task=f"{home}:task",
        stop={"epochs": 2.0, "metric": "bright", "target": 2.0},
    )
    serving = Serving(recipe=recipe, out=tmp_path / "run", listen="127.0.0.1:0")
    serving.join_all(tmp_path / "states")
    result = serving.work.answer()
    assert isinstance(result, fedoptima.Result)
    assert result.server_samples > 0
    assert 0 <= result.metrics["bright"] <= 1
    assert result.metrics["accuracy"] > 0.3
    assert set(result.device_metrics) == set(NAMES)
    assert fedoptima.replay(tmp_path / "run", allow_modules=["tests"]).identical


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"listen": "here"}, "listen here: write it as HOST:PORT"),
        ({"listen": "0.0.0.0:0"}, "reached over the network"),
        ({"resume": True}, "there is no run to resume here; give a recipe"),
        ({"cert": "server.pem"}, "belong together"),
    ],
)
def test_a_server_that_cannot_work_is_refused_before_anything_is_written(
    options: dict[str, object], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        fedoptima.serve(out=tmp_path / "run", **options)  # type: ignore[arg-type]
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"server": "here"}, "server='here': write it as HOST:PORT"),
        ({"server": "127.0.0.1:9"}, "name=... is missing"),
        ({"server": "train.example.org:9", "name": "pi"}, "reached over the network"),
        ({"server": "127.0.0.1:9", "name": "a b"}, "'a b' cannot be a device's name: use at most"),
        ({"server": "127.0.0.1:9", "name": "../pi"}, "cannot be a device's name"),
        ({"server": "127.0.0.1:9", "name": "pi", "threads": 0}, "threads=0: must be from 1 to"),
        ({"server": "127.0.0.1:9", "name": "pi", "threads": 9999}, "must be from 1 to 1024"),
        ({"server": "127.0.0.1:9", "name": "pi", "gflops": 0.0}, "gflops=0: must be above 0"),
        (
            {"server": "127.0.0.1:9", "name": "pi", "up_mbps": float("inf")},
            "up_mbps='inf': must be above 0 and finite",
        ),
    ],
)
def test_a_device_that_cannot_work_is_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        fedoptima.join(**options)  # type: ignore[arg-type]


def test_coded_runs_are_served_and_replayed_bit_for_bit(tmp_path: Path) -> None:
    """splitfed sends all that can be coded: activations, gradients and updates."""
    codecs = dict.fromkeys(("codec", "gradient_codec", "update_codec"), "int8")
    recipe, out = tiny_recipe(method={"name": "splitfed", **codecs}), tmp_path / "run"
    serving = Serving(recipe=recipe, out=out, listen=ANYWHERE)
    serving.join_all(tmp_path / "states")
    result = serving.work.answer()
    assert isinstance(result, fedoptima.Result)
    found = fedoptima.replay(out, weights=True, allow_modules=["tests"])
    assert found.identical, found
    traffic = result.summary.traffic
    assert traffic.down.gradients < traffic.up.activations  # these have labels beside them
