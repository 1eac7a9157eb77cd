"""Names and addresses of this machine, as they stand in a request."""

from __future__ import annotations

import ipaddress


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def names_this_machine(header: str) -> bool:
    """A request's Host: another site's script can have its own name point here (DNS rebinding)."""
    if header.startswith("["):
        return is_loopback(header.partition("]")[0][1:])
    return is_loopback(header.partition(":")[0])  # the port may be a tunnel's
