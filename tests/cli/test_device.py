"""``fedoptima device``: how it ends, and what both sides are told."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from torch import Tensor

from fedoptima.config.schema import Recipe
from fedoptima.data.custom import as_dataset
from fedoptima.data.dataset import Dataset
from fedoptima.runtime.security.certificates import make_authority, make_device
from tests.cli.conftest import Answer, Call
from tests.e2e.tiny import CLASSES, pictures
from tests.support.network import Server, Work, start_device, tiny_recipe, until

Device = Callable[..., Answer]

HERE = ("--server", "127.0.0.1:1", "--give-up-after", "0", "--name", "pi")  # nobody is there


def two_of_the_classes() -> Dataset:
    inputs, labels = pictures(30, seed=5)
    few = (inputs[labels < 2], labels[labels < 2])
    return as_dataset(few, few)


def a_class_too_many() -> Dataset:
    return as_dataset(pictures(30, seed=5), pictures(30, seed=5), classes=CLASSES + 1)


def larger_pictures() -> Dataset:
    return as_dataset(pictures(30, 6, seed=5), pictures(30, 6, seed=5))


def trained_in_vain() -> Dataset:
    """Every batch of the training is too large for this device."""

    def prepare(batch: Tensor) -> Tensor:
        if len(batch) == 8:
            raise MemoryError("8 pictures are too many")
        return batch

    return as_dataset(pictures(30, seed=5), pictures(30, seed=5), prepare=prepare)


def broken() -> Dataset:
    raise ValueError("the sensor is silent")


def alone(**parts: object) -> Recipe:
    """A run that one device is enough for."""
    return tiny_recipe("fedoptima", **{"deploy": {"devices": 1}, **parts})


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with Server(alone(), tmp_path / "run") as running:
        yield running


@pytest.fixture
def device(call: Call, tmp_path: Path) -> Device:
    def run(server: Server, *options: str, name: str = "fast") -> Answer:
        where = ("--server", str(server.address), "--state", tmp_path / "states")
        where += ("--allow-module", "tests")
        return call("device", *where, "--name", name, *options)

    return run


def in_the_background(work: Callable[[], object]) -> Work:
    background = Work(work, "background")
    background.start()
    return background


def has_joined(server: Server, name: str = "fast") -> bool:
    watch = server.watch
    return watch is not None and name in watch.node.machine.members


# ---- a run that ends -----------------------------------------------------------------------------


def test_a_device_takes_part_until_the_run_is_over(device: Device, server: Server) -> None:
    answer = device(server)
    assert (answer.code, answer.out) == (0, "")
    for said in (
        f"connected to {server.address}",
        "32 samples, ",
        "round 1 is handed in: version 0 trained on 32 samples",
        "fast is done: 2 epochs done",
    ):
        assert said in answer.complaint
    assert server.result().reason == "2 epochs done"


def test_quiet_means_that_only_what_is_wrong_is_said(device: Device, server: Server) -> None:
    assert device(server, "--quiet").err == ""


def test_a_devices_own_data_may_lack_some_classes(device: Device, server: Server) -> None:
    answer = device(server, "--data", "tests.cli.test_device:two_of_the_classes", name="anybody")
    assert answer.code == 0
    assert "20 samples" in answer.complaint


# ---- a device that cannot take part --------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (
            "tests.cli.test_device:a_class_too_many",
            "classes is 4 here and 3 there; if your labels begin at 1",
        ),
        ("tests.cli.test_device:larger_pictures", "image_size is 6 here and 4 there"),
    ],
)
def test_data_that_do_not_fit_are_told_to_both_sides(
    device: Device, server: Server, caplog: pytest.LogCaptureFixture, data: str, complaint: str
) -> None:
    with caplog.at_level(logging.INFO, "fedoptima.server"):
        answer = device(server, "--data", data)
        assert answer.code == 2
        assert complaint in answer.complaint
        assert "Traceback" not in answer.err
        until(lambda: "fast left" in caplog.text, "the server has seen it go")
    heard = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert len(heard) == 1
    assert heard[0].startswith("fast: device failed: ")
    assert complaint in heard[0]
    assert device(server).code == 0  # the server goes on


def test_a_bug_in_a_devices_data_is_told_to_the_server(
    device: Device, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    answer = device(server, "--data", "tests.cli.test_device:broken")
    assert answer.code == 2
    assert "failed with ValueError: the sensor is silent" in answer.complaint
    assert 'raise ValueError("the sensor is silent")' in answer.complaint  # the line
    assert "Traceback" not in answer.complaint
    until(lambda: "ValueError: the sensor is silent" in caplog.text, "the server was told")


def test_a_job_that_fails_ends_the_device_and_not_the_run(
    device: Device, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    answer = device(server, "--data", "tests.cli.test_device:trained_in_vain", name="weak")
    assert answer.code == 1
    assert "error: weak cannot continue: MemoryError: 8 pictures are too many" in answer.complaint
    until(lambda: "weak: device failed: 'MemoryError: 8 pictures" in caplog.text, "it was told")
    assert device(server).code == 0


def test_a_device_that_the_recipe_does_not_know_is_told_its_ways_out(
    device: Device, server: Server
) -> None:
    answer = device(server, name="stranger")
    assert answer.code == 2
    assert "does not know 'stranger'" in answer.complaint
    assert "--data, or name it in the recipe's fleet" in answer.complaint


def test_a_second_live_device_under_one_name_is_refused(
    device: Device, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    recipe = alone(stop={"epochs": 1000.0})
    with Server(recipe, tmp_path / "long") as server:
        first = start_device("fast", server.address, tmp_path)
        until(lambda: has_joined(server), "the first has joined")
        answer = device(server)
        assert answer.code == 1
        assert f"error: {server.address} refused this device: 'fast' is connected already" in (
            answer.complaint
        )
        assert "was refused: 'fast' is connected already" in caplog.text
        server.interrupt()
        first.answer()


def test_a_server_that_never_comes_is_given_up(call: Call, tmp_path: Path) -> None:
    where = ("--server", "127.0.0.1:1", "--name", "pi", "--state", tmp_path / "states")
    answer = call("device", *where, "--give-up-after", "0")
    assert answer.code == 1
    assert "no server at 127.0.0.1:1" in answer.complaint


# ---- a device that is stopped, and one that stays ------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.usefixtures("hang_up")
def test_a_device_that_is_stopped_says_so_and_can_come_back(
    device: Device, tmp_path: Path, number: signal.Signals
) -> None:
    with Server(alone(stop={"epochs": 1000.0}), tmp_path / "long") as server:

        def stop_it() -> None:
            until(lambda: has_joined(server), "it has joined")
            os.kill(os.getpid(), number)

        stopping = in_the_background(stop_it)
        answer = device(server)
        stopping.answer()
        assert answer.code == 130
        assert "press Ctrl-C again to end at once" in answer.complaint
        assert "fast was stopped; start it again" in answer.complaint
        assert "Traceback" not in answer.err
        assert (tmp_path / "states" / "fast.json").exists()
        until(lambda: not has_joined(server), "the server has seen it go")


def test_a_device_that_stays_takes_part_in_the_next_run(
    device: Device, tmp_path: Path, server: Server
) -> None:
    def lead_another_run() -> None:
        first = server.result()
        with Server(alone(), tmp_path / "next", port=server.address.port) as following:
            assert following.result().reason == first.reason
        os.kill(os.getpid(), signal.SIGTERM)

    leading = in_the_background(lead_another_run)
    answer = device(server, "--stay")
    leading.answer()
    assert answer.code == 130
    assert answer.complaint.count("2 epochs done; waiting for the next run") == 1
    assert answer.complaint.count("round 1 is handed in") == 2


# ---- what is refused before anything is done -----------------------------------------------------


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--server", "127.0.0.1:1"], "--name is missing"),
        (["--name", "pi"], "Missing option '--server'"),
        (["--server", "127.0.0.1", "--name", "pi"], "write it as HOST:PORT"),
        (["--server", "127.0.0.1:0", "--name", "pi"], "must be a number from 1"),
        (["--server", "127.0.0.1:1", "--name", "pi", "--gflops", "0"], "--gflops 0: must be above"),
        (["--server", "127.0.0.1:1", "--name", "pi", "--up-mbps", "-1"], "--up-mbps -1: must be"),
        ([*HERE, "--data", "nowhere:load"], "--data nowhere:load: cannot be imported"),
        ([*HERE, "--data", "sensors"], "--data sensors: unknown data set"),
        ([*HERE, "--compute", "cuda:99"], "--compute cuda:99: torch sees"),
        ([*HERE, "--compute", "tpu"], "--compute tpu: use 'cpu', 'cuda' or 'cuda:1'"),
        (["--server", "192.0.2.1:1", "--name", "pi"], "fedoptima certs device NAME"),
        (["--server", "192.0.2.1:1", "--name", "pi", "--tls-ca", "ca.pem"], "belong together"),
    ],
)
def test_what_cannot_work_is_said_at_once(call: Call, options: list[str], complaint: str) -> None:
    answer = call("device", *options)
    assert answer.code == 2
    assert complaint in answer.complaint


def test_its_name_is_the_certificates(call: Call, tmp_path: Path) -> None:
    make_authority(tmp_path, ["127.0.0.1"], days=2)
    pair = make_device(tmp_path, "pi-7", days=2)
    files = ("--tls-ca", tmp_path / "ca.pem", "--tls-cert", pair.cert, "--tls-key", pair.key)
    where = ("--server", "127.0.0.1:1", "--state", tmp_path / "states", "--give-up-after", "0")
    assert call("device", *where, *files).code == 1
    answer = call("device", *where, *files, "--name", "pi-8")
    assert answer.code == 2
    assert "is that of 'pi-7', and a device goes by its certificate's name" in answer.complaint
