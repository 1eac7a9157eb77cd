"""A run over the network from Python alone: `fedoptima.serve` and `fedoptima.join`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from threading import Event

import pytest

import fedoptima
from fedoptima import ConfigError, Interrupted
from tests.support.network import DEADLINE, NAMES, Work, tiny_recipe


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
        ({"server": "here"}, "--server here: write it as HOST:PORT"),
        ({"server": "127.0.0.1:9"}, "--name is missing"),
        ({"server": "train.example.org:9", "name": "pi"}, "reached over the network"),
        ({"server": "127.0.0.1:9", "name": "pi", "gflops": 0.0}, "--gflops 0: must be above 0"),
    ],
)
def test_a_device_that_cannot_work_is_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        fedoptima.join(**options)  # type: ignore[arg-type]
