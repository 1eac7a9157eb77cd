"""``fedoptima run`` as a process of its own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from tests.support.network import until

# Longer than the name of a socket may be.
TEMPORARY = "temporary" + 100 * "-"


class Run:
    """``fedoptima run`` as a process of its own, in a folder with a model and data."""

    def __init__(self, folder: Path, *options: str) -> None:
        self._folder = folder
        self._err = folder / "stderr.txt"
        environment = {**os.environ, "TMPDIR": str(folder / TEMPORARY)}
        (folder / TEMPORARY).mkdir(exist_ok=True)
        with self._err.open("w") as err:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "fedoptima", "run", *options],
                cwd=folder,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=err,
                text=True,
                process_group=0,
            )

    def says(self, words: str) -> str:
        def said() -> str:
            text = self._err.read_text()
            assert words in text or self._process.poll() is None, text
            return text if words in text else ""

        return until(said, f"it says {words!r}", 120.0)

    def devices(self) -> dict[str, int]:
        """The devices' processes."""
        line = self.says("the devices' processes: ").partition("processes: ")[2].splitlines()[0]
        return {name: int(pid) for name, pid in re.findall(r"(\S+) \((\d+)\)", line)}

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def send_to_all(self, number: signal.Signals) -> None:
        """As a terminal does: to the process and all that it has started in its group."""
        os.killpg(self._process.pid, number)

    def ends(self) -> tuple[int, str, str]:
        """Exit code, stdout, stderr."""
        out, _ = self._process.communicate(timeout=180)
        return self._process.returncode, out, self._err.read_text()

    def clear_away(self) -> None:
        self._process.kill()
        self._process.wait()

    @property
    def certificates(self) -> list[Path]:
        return list((self._folder / TEMPORARY).glob("fedoptima-*"))


def lives(pid: int) -> bool:
    """A process that has ended and that nobody has asked for yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
