"""Files of a run's folder, opened for what they are: no links, no bombs.

A folder may come from somebody else. A link in it could lead a reader to any file of this user, or
a resumed run to overwrite one; a few megabytes of gzip can stand for many gigabytes of text.
"""

from __future__ import annotations

import errno
import gzip
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from fedoptima.core.errors import ConfigError

# The longest record that was met is a plan for 100,000 devices, 24 MB. Traces that were measured
# are compressed to a tenth.
LONGEST_LINE = 1 << 26  # bytes
_MOST_TIMES, _ANYWAY = 100, 1 << 24  # decompressed: so many times what was read, and this much

_NOT_FOLLOWED = "is a link, and links in a run's folder are not followed"


# What ails a disk, and not the file that was asked for.
_MAY_PASS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EMFILE, errno.ENFILE)


def may_pass(error: OSError) -> bool:
    """The same write may work later, when there is room."""
    return error.errno in _MAY_PASS


def open_plain(path: Path, mode: str = "r", **options: Any) -> IO[Any]:
    """Like ``path.open``, but raises OSError where there is a link."""
    return open(path, mode, opener=_without_links, **options)


def _without_links(path: str, flags: int) -> int:
    try:
        return os.open(path, flags | os.O_NOFOLLOW, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, _NOT_FOLLOWED, path) from error
        raise


def read_plain(path: Path) -> str:
    with open_plain(path, encoding="utf-8") as file:
        return str(file.read())


def refuse_links(folder: Path) -> None:
    """Before anything is written into a folder that may be somebody else's."""
    for parent, folders, files in os.walk(folder):
        for name in (*folders, *files):
            refuse_link(Path(parent, name))


def refuse_link(path: Path) -> None:
    if path.is_symlink():
        raise ConfigError(f"{path}: {_NOT_FOLLOWED}; put there what it leads to, or remove it")


class Bomb(ValueError):
    """A compressed file holds more than any trace of its size would."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what}: no trace is like that, so it is not decompressed any further")


def check_growth(decompressed: int, compressed: int) -> None:
    """Bytes so far: of its text, and of the file."""
    if decompressed > _MOST_TIMES * compressed + _ANYWAY:
        raise Bomb(f"decompressed it is more than {_MOST_TIMES} times as large")


def compressed_lines(path: Path) -> Iterator[bytes]:
    """Each with its end, if it has one. Raises what gzip raises, and `Bomb`."""
    with open_plain(path, "rb") as raw, gzip.open(raw, "rb") as file:
        total, bound = 0, 0
        while line := file.readline(LONGEST_LINE + 1):
            if len(line) > LONGEST_LINE:
                raise Bomb(f"a line is longer than {LONGEST_LINE:,} bytes")
            total += len(line)
            if total > bound:
                check_growth(total, read := raw.tell())
                bound = _MOST_TIMES * read + _ANYWAY
            yield line
