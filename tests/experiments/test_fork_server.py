"""Processes forked from one that has loaded torch: what they have, and how they end.

In a process of their own, because other tests share one fork server, which has loaded more.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.support.network import until

DEADLINE = 180.0
PARENT = """
import sys
from pathlib import Path
sys.path.remove("")  # as in a command: the current folder is not looked into
from fedoptima.experiments.fork_server import process_of, start_fork_server
from tests.experiments import forked
if __name__ == "__main__":
    work = getattr(forked, sys.argv[1])
    start_fork_server(work)
    process = process_of(work, None, Path("log"))
    process.start()
    print(process.pid, flush=True)
    process.join()
    print(process.exitcode)
"""


def parent_of(work: str, folder: Path) -> subprocess.Popen[str]:
    root = str(Path(__file__).parents[2])
    return subprocess.Popen(
        [sys.executable, "-c", PARENT, work],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([root, *filter(None, sys.path)])},
        stdout=subprocess.PIPE,
        text=True,
    )


def pid_of_child(parent: subprocess.Popen[str], log: Path) -> int:
    """Once it has begun to work."""
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    until(lambda: log.exists() and "waiting" in log.read_text(), "it works", DEADLINE)
    return pid


def test_a_process_finds_torch_loaded_and_grpc_not_and_has_a_session_of_its_own(
    tmp_path: Path,
) -> None:
    (tmp_path / "numbers.py").write_text("a file in the current folder replaces no library")
    out, _ = parent_of("say_what_is_loaded", tmp_path).communicate(timeout=DEADLINE)
    assert out.splitlines()[-1] == "0"
    found = (tmp_path / "log").read_text().split()
    assert found == ["torch", "torch._dynamo", "fedoptima.experiments.setup", "session"]


def test_how_a_process_ended_is_known(tmp_path: Path) -> None:
    parent = parent_of("wait_for_ever", tmp_path)
    os.kill(pid_of_child(parent, tmp_path / "log"), signal.SIGKILL)
    out, _ = parent.communicate(timeout=DEADLINE)
    assert out.split() == [str(-signal.SIGKILL)]


def test_a_process_ends_with_its_parent_however_that_ends(tmp_path: Path) -> None:
    parent = parent_of("wait_for_ever", tmp_path)
    pid = pid_of_child(parent, tmp_path / "log")
    parent.kill()
    parent.communicate(timeout=DEADLINE)
    until(lambda: not Path(f"/proc/{pid}").exists(), "it has ended", DEADLINE)
