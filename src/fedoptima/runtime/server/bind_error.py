"""Why an address cannot be listened on: gRPC keeps it to itself, so the system is asked again."""

from __future__ import annotations

import errno
import socket

from fedoptima.runtime.address import Address

_WAYS_OUT = {
    errno.EADDRINUSE: "is another server running there? Stop it, or choose another port",
    errno.EADDRNOTAVAIL: "use an address of this machine, or 0.0.0.0 for all of them",
    errno.EACCES: "choose a port above 1023",
}


def why_not(listen: Address) -> str:
    """One sentence, to be asked for after it has failed."""
    where = f"--listen {listen}: cannot be listened on"
    try:
        # One that has just been closed may be listened on again, by gRPC as well.
        socket.create_server((listen.host, listen.port), family=_family(listen)).close()
    except OSError as error:
        way_out = _WAYS_OUT.get(error.errno or 0, "choose another address")
        reason = str(error.strerror).partition(" (while ")[0]  # Python adds the address
        return f"{where} ({reason}); {way_out}"
    return f"{where} (but it can be now); try again"


def _family(listen: Address) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in listen.host else socket.AF_INET
