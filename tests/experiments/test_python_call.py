"""Ctrl-C in Python leaves a run that can be resumed, and says how."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import fedoptima
from fedoptima.experiments.python_call import stoppable
from fedoptima.experiments.simulated_run import Interrupted
from tests.experiments.runs import data, network, run

ROOT = Path(__file__).parents[2]
PATIENCE = 180.0  # seconds; a process that has not come so far by then never will

SCRIPT = """
import os, signal, sys
from pathlib import Path
from tests.experiments.runs import run

def press(watch):  # Ctrl-C, once there is a checkpoint
    if not pressed and any(Path(sys.argv[1]).glob("checkpoints/[0-9]*")):
        pressed.append(watch)
        os.kill(os.getpid(), signal.SIGINT)

pressed = []
options = {"epochs": float(sys.argv[2]), "checkpoint_every": 0.01}
print(run(out=sys.argv[1], observer=press, **options).weights_digest)
"""
COMPARISON = """
import sys
import fedoptima
from tests.experiments.runs import FLEET, data, network
fedoptima.compare(
    methods="fl,fedasync", model=network(), train=data(), test=data(48, seed=1), fleet=FLEET,
    training={"batch_size": 8}, epochs=1e6, jobs=2, checkpoint_every=0.1, out=sys.argv[1],
)
"""


def script(text: str, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", text, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for(found: Path, name: str, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not any(found.glob(name)):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_ctrl_c_in_a_script_saves_a_checkpoint_and_says_how_to_go_on(tmp_path: Path) -> None:
    epochs = 12.0
    broken = tmp_path / "broken"
    process = script(SCRIPT, broken, epochs)
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == -signal.SIGINT, err
    assert out == ""
    assert "stopping after this step; press Ctrl-C again to end at once" in err
    last = err.strip().splitlines()[-1]
    assert re.match(r"KeyboardInterrupt: stopped at [\d.]+ s of the run; ", last)
    assert last.endswith(
        f"resume it with fedoptima.resume({str(broken)!r}, model=..., train=..., test=...)"
    )
    assert not (broken / "summary.json").exists()
    result = fedoptima.resume(broken, model=network(), train=data(), test=data(48, seed=1))
    assert result.weights_digest == run(epochs=epochs).weights_digest


def press_once(watch: object) -> None:
    signal.raise_signal(signal.SIGINT)


def test_without_a_folder_ctrl_c_ends_a_run_at_once_and_says_what_would_have_kept_it() -> None:
    with pytest.raises(KeyboardInterrupt, match=r"nothing was kept: with out=\.\.\. it could be"):
        run(observer=press_once)


def test_ctrl_c_stops_a_comparison_with_all_its_forked_processes(tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = script(COMPARISON, out)
    wait_for(out, "*/checkpoints/[0-9]*", process)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE)  # which waits for all that hold its output
    assert process.returncode == -signal.SIGINT, err
    assert f"fedoptima.resume_comparison({str(out)!r}, model=..., train=..., test=...)" in err
    assert not list(out.glob("*/summary.json"))


def press(times: int) -> None:
    with stoppable(None, "folder", lambda: "go on like this") as asked:
        assert not asked()
        for _ in range(times):
            signal.raise_signal(signal.SIGINT)
        assert times == 1


def test_a_second_ctrl_c_ends_at_once() -> None:
    with pytest.raises(KeyboardInterrupt, match=r"^stopped; go on like this"):
        press(2)


def test_ctrl_c_at_the_very_end_still_stops_the_callers_loop() -> None:
    with pytest.raises(KeyboardInterrupt, match="when the run was over; go on like this"):
        press(1)


def test_whoever_asks_for_a_stop_gets_interrupted_and_keeps_ctrl_c(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGINT)
    handlers = []

    def look() -> bool:
        handlers.append(signal.getsignal(signal.SIGINT))
        return len(handlers) > 3

    with pytest.raises(Interrupted):
        run(out=tmp_path / "run", interrupted=look)
    assert set(handlers) == {before}


def test_in_another_thread_ctrl_c_is_left_alone() -> None:
    failed: list[BaseException] = []

    def work() -> None:
        try:
            run(epochs=1.0)
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert not failed


def test_a_handler_of_the_callers_own_is_left_alone(tmp_path: Path) -> None:
    pressed: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: pressed.append(number))
    try:
        seen = []

        def press(watch: object) -> None:
            if not seen:
                seen.append(watch)
                signal.raise_signal(signal.SIGINT)

        assert run(out=tmp_path / "run", epochs=1.0, observer=press).accuracy is not None
    finally:
        signal.signal(signal.SIGINT, before)
    assert pressed == [signal.SIGINT]
