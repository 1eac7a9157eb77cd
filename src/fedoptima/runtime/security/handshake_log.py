"""Connections refused for their certificate, as clear lines in the server's log.

gRPC's C core shakes hands by itself: a device that is refused there never reaches any Python code,
and all there is to see is a line of the C core on file descriptor 2, without the peer's address.
So inside ``refusals_logged()`` a filter sits on that descriptor (see `stderr_filter`); Python's own
stderr keeps its place on the terminal or file. Where the filter cannot be had, all is as before.

The C core prints such lines unless the environment's GRPC_VERBOSITY hides them.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from threading import Thread

from fedoptima.runtime.security import stderr_filter
from fedoptima.runtime.timeouts import DEFAULT

log = logging.getLogger("fedoptima.server")

_QUIET = 10.0  # seconds between two lines with the same reason
_STDERR = 2

_OTHER_CA = "its certificate is from another CA than this server's"
_BROKEN_OFF = "it broke off, maybe because it does not trust this server's certificate"
# What the C core says -> what it means; the first that fits.
_REASONS = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it came without a certificate",
    "certificate has expired": "its certificate has expired",
    "certificate is not yet valid": "its certificate is not valid yet by this machine's clock",
    "unsupported certificate purpose": "its certificate is not a device's",
    "local issuer certificate": _OTHER_CA,
    "self signed certificate": _OTHER_CA,
    "self-signed certificate": _OTHER_CA,
    "BAD_SIGNATURE": _OTHER_CA,
    "WRONG_VERSION_NUMBER": "it does not speak TLS (a device started without certificates?)",
    "HTTP_REQUEST": "it does not speak TLS (a browser?)",
    "BAD_PACKET_LENGTH": _BROKEN_OFF,  # what the C core makes of OpenSSL's alert
    "_ALERT_": _BROKEN_OFF,
}


def explain(line: str) -> str:
    """Why a connection was refused, from the C core's line about it."""
    for sign, reason in _REASONS.items():
        if sign in line:
            return reason
    return f"the TLS handshake failed ({line.partition('] ')[2].strip() or line.strip()})"


class Repetition:
    """The same reason is told once in a while; in between it is counted."""

    def __init__(self) -> None:
        self._told: dict[str, float] = {}
        self._untold: Counter[str] = Counter()

    def tell(self, reason: str, now: float) -> str | None:
        self._untold[reason] += 1
        if now - self._told.get(reason, -inf) < _QUIET:
            return None
        self._told[reason] = now
        return self._sentence(reason)

    def rest(self) -> list[str]:
        """What has been counted and not told."""
        return [self._sentence(reason) for reason in list(self._untold)]

    def _sentence(self, reason: str) -> str:
        count = self._untold.pop(reason)
        who = "a connection was" if count == 1 else f"{count} connections were"
        return f"{who} refused: {reason}"


@contextmanager
def refusals_logged() -> Iterator[None]:
    if os.environ.get("GRPC_VERBOSITY", "").upper() in ("ERROR", "NONE"):
        log.info("GRPC_VERBOSITY hides connections refused for their certificate; unset it")
    try:
        terminal = os.dup(_STDERR)
        process = _start_filter(terminal)
    except OSError as error:
        log.info("connections refused for their certificate are not logged: %s", error)
        yield
        return
    reporter = Thread(target=_report, args=(process, terminal), name="refusals", daemon=True)
    with _python_keeps(terminal):
        _put_in_place(process)
        reporter.start()
        try:
            yield
        finally:
            os.dup2(terminal, _STDERR)  # the filter reads to the end, and ends
            reporter.join(DEFAULT.farewell)
    # ``terminal`` stays open: whoever has kept Python's stderr of in between may still write to it.


def _start_filter(stderr: int) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        # -I, -S: nothing but the standard library, and quickly.
        [sys.executable, "-I", "-S", stderr_filter.__file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        start_new_session=True,  # a Ctrl-C is for the server, whose last lines are yet to come
    )
    if process.stdout is None or process.stdout.readline() != stderr_filter.READY:
        process.kill()
        process.wait()
        raise OSError("the filter of stderr did not start")
    return process


def _put_in_place(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    os.dup2(process.stdin.fileno(), _STDERR)
    process.stdin.close()


@contextmanager
def _python_keeps(terminal: int) -> Iterator[None]:
    """Python's stderr stays a terminal, if it was one; one that is not on descriptor 2, as is."""
    before = sys.stderr
    try:
        on_descriptor = before.fileno() == _STDERR
    except (AttributeError, OSError, ValueError):  # none, or no file
        on_descriptor = False
    if on_descriptor:
        before.flush()
        sys.stderr = open(  # noqa: SIM115 - see refusals_logged: it outlives this
            terminal, "w", 1, encoding=before.encoding, errors=before.errors, closefd=False
        )
    try:
        yield
    finally:
        sys.stderr = before


def _report(process: subprocess.Popen[bytes], terminal: int) -> None:
    assert process.stdout is not None
    repetition = Repetition()
    for line in process.stdout:
        reason = explain(line.decode(errors="replace"))
        if sentence := repetition.tell(reason, time.monotonic()):
            log.warning(sentence)
    # The filter is gone, told to or not; stderr must not stay on a pipe that nobody reads.
    os.dup2(terminal, _STDERR)
    process.wait()
    for sentence in repetition.rest():
        log.warning(sentence)
