"""A device's records that the server does not have yet, on the device's own disk.

They are handed over once a second; a process that is killed in between leaves here what it had, and
the next one hands it over. The system has each record at once. Nothing is synced, because a record
is no work: after a power cut the last ones may be missing.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import time
from collections.abc import Callable, Iterable
from io import FileIO
from itertools import islice
from pathlib import Path

from fedoptima.core.types import NodeId
from fedoptima.runtime.disk import Disk
from fedoptima.trace.device_record import read_device_record
from fedoptima.trace.record import time_of

_log = logging.getLogger("fedoptima.device")
_WHAT = "what this device has recorded"
_DONE = 1_000  # records that the server has are left in the file, before it is written anew


class Spool:
    """``clock``: the device's, which begins anew with each process."""

    def __init__(self, path: Path, device: NodeId, clock: Callable[[], float], disk: Disk) -> None:
        self._path = path
        self._disk = disk
        self._device = device
        self._clock = clock
        self._file: FileIO | None = None
        self._done = 0
        self.run = ""

    def left_over(self, run: str, records: int) -> list[str]:
        """What an earlier process in this run has left beyond the server's ``records``, on this
        process's clock. It counts as far as it is whole."""
        try:
            with self._path.open(encoding="utf-8", newline="\n") as file:
                header = json.loads(file.readline())
                if header["run"] != run:
                    return []
                shift = float(header["began"]) - self._began()
                lines = islice(file, max(0, records - int(header["first"])), None)
                return list(self._whole(lines, shift))
        except FileNotFoundError:
            return []
        except (OSError, ValueError, LookupError, TypeError) as error:
            _log.warning("%s: cannot be read (%s); some records are lost", self._path, error)
            return []

    def _whole(self, lines: Iterable[str], shift: float) -> Iterable[str]:
        for text in lines:
            line = text.removesuffix("\n")
            try:
                read_device_record(line, self._device)
            except ValueError:  # cut off by a kill, or damaged: the server would refuse it
                return
            _, _, rest = line.partition(",")
            yield f"[{time_of(line) + shift!r},{rest}"

    def _began(self) -> float:
        """This process's clock showed 0 then: in seconds since 1970, as all processes count."""
        return time.time() - self._clock()

    # ---- writing -----------------------------------------------------------------------------

    def begin(self, run: str, first: int, lines: Iterable[str]) -> None:
        """``first``: the number of the first of ``lines``, which the server does not have."""
        self.run = run
        self._done = 0
        header = json.dumps({"run": run, "first": first, "began": self._began()})
        temporary = self._path.with_suffix(".part")
        try:
            self.close()
            file = FileIO(temporary, "wb")
            self._file = file
            _write(file, "".join(f"{line}\n" for line in (header, *lines)))
            os.replace(temporary, self._path)
        except OSError as error:
            self._fail(error)
        else:
            self._disk.worked(_WHAT)

    def add(self, line: str) -> None:
        if self._file is not None:
            try:
                _write(self._file, f"{line}\n")
            except OSError as error:
                self._fail(error)

    def done(self, records: int) -> bool:
        """The server has so many more of them; True: `begin` it anew."""
        self._done += records
        return self._done >= _DONE or self._file is None

    def _fail(self, error: OSError) -> None:
        """A record is not worth ending a run; at the next `begin` it is tried again."""
        self.close()
        self._disk.failed(_WHAT, error)

    def close(self) -> None:
        if self._file is not None:
            file, self._file = self._file, None
            file.close()


def _write(file: FileIO, text: str) -> None:
    data = text.encode()
    if file.write(data) != len(data):  # a disk that is nearly full takes a part
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
