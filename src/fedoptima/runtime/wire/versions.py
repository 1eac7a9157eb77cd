"""Server and devices of different releases: who can work with whom.

They speak the same protocol as long as `codec.SCHEMA` is the same. A device also has to understand
the recipe that the server sends it, and devices of earlier releases refuse keys that they do not
know: so a release that adds keys raises `OLDEST_DEVICE`. tests/runtime/test_mixed_versions.py plays
streams that earlier releases have left to this one.
"""

from __future__ import annotations

import re
from typing import Final

from fedoptima.core.text import printable, quoted
from fedoptima.runtime.wire import wire_pb2 as wire
from fedoptima.runtime.wire.codec import SCHEMA
from fedoptima.version import __version__

OLDEST_DEVICE: Final = (0, 2)  # that can read this release's recipes
UNSAID: Final = "0.1.0"  # servers up to this one do not say their version
_LONGEST: Final = 20
_WAY_OUT: Final = "install the same version on both"


def refusal(hello: wire.Hello) -> str | None:
    """Why this server cannot work with a device that says so; None: it can."""
    device = f"{quoted(hello.name)} has fedoptima {printable(hello.version, _LONGEST)}"
    if hello.schema != SCHEMA:
        return (
            f"{device} (protocol {hello.schema}), this server {__version__} (protocol {SCHEMA}): "
            f"{_WAY_OUT}"
        )
    release = _release(hello.version)
    if release is not None and release < OLDEST_DEVICE:
        oldest = ".".join(map(str, OLDEST_DEVICE))
        return (
            f"{device}, this server {__version__}, which works with devices of {oldest} or later: "
            f"{_WAY_OUT}"
        )
    return None


def mixture(welcome: wire.Welcome) -> str:
    """What a device says where its server has another version; empty where it has the same."""
    server = printable(welcome.version, _LONGEST) or UNSAID
    if server == __version__:
        return ""
    return f"the server has fedoptima {server}, this device {__version__}"


def _release(version: str) -> tuple[int, int] | None:
    """Major and minor; None if it says neither."""
    found = re.match(r"(\d{1,6})\.(\d{1,6})", version)
    return (int(found[1]), int(found[2])) if found else None
