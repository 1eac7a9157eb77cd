"""Connections refused for their certificate, as clear lines in the server's log.

gRPC's C core shakes hands by itself: a device that is refused there never reaches any Python code,
and all there is to see is a line of the C core on file descriptor 2, without the peer's address.
So inside ``refusals_logged()`` a filter sits on that descriptor (see `stderr_filter`); Python's own
stderr keeps its place on the terminal or file. Where the filter cannot be had, all is as before.

The C core prints such lines unless the environment's GRPC_VERBOSITY hides them.
"""

from __future__ import annotations

import logging

log = logging.getLogger("fedoptima.server")

_QUIET = 10.0  # seconds between two lines with the same reason
_FAREWELL = 2.0  # seconds for the filter's last lines, at the end
_STDERR = 2

# What the C core says -> what it means; the first that fits.
_REASONS = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it came without a certificate",
    "certificate has expired": "its certificate has expired",
    "certificate is not yet valid": "its certificate is not valid yet by this machine's clock",
    "unsupported certificate purpose": "its certificate is not a device's",
    "local issuer certificate": "its certificate is from another CA than this server's",
    "self signed certificate": "its certificate is from another CA than this server's",
    "self-signed certificate": "its certificate is from another CA than this server's",
    "BAD_SIGNATURE": "its certificate is from another CA than this server's",
    "WRONG_VERSION_NUMBER": "it does not speak TLS (a device started without certificates?)",
    "HTTP_REQUEST": "it does not speak TLS (a browser?)",
    # How OpenSSL's alert, sent by a device that breaks off, reaches the C core.
    "BAD_PACKET_LENGTH": "it broke off, maybe because it does not trust this server's certificate",
    "_ALERT_": "it broke off, maybe because it does not trust this server's certificate",
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
        self._untold: dict[str, int] = {}

    def tell(self, reason: str, now: float) -> str | None:
        if now - self._told.get(reason, -_QUIET) < _QUIET:
            self._untold[reason] = self._untold.get(reason, 0) + 1
            return None
        self._told[reason] = now
        return self._sentence(reason, self._untold.pop(reason, 0))

    def rest(self) -> list[str]:
        """What has been counted and not told."""
        counted, self._untold = self._untold, {}
        return [self._sentence(reason, count - 1) for reason, count in counted.items()]

    @staticmethod
    def _sentence(reason: str, more: int) -> str:
        times = f" ({more} more for the same reason since the last such line)" if more else ""
        return f"a connection was refused: {reason}{times}"
