"""HOST:PORT as it is typed, whether it stays inside this machine, and why it cannot be used."""

from __future__ import annotations

import errno
import socket
from dataclasses import dataclass
from ipaddress import ip_address
from urllib.parse import unquote

from fedoptima.core.errors import ConfigError

_EXAMPLES = "for example 192.168.1.10:50051, train.example.org:50051 or [::1]:50051"
_LAST_PORT = 65_535
_WAYS_OUT = {
    errno.EADDRINUSE: "is another server running there? Stop it, or choose another port",
    errno.EADDRNOTAVAIL: "use an address of this machine, or 0.0.0.0 for all of them",
    errno.EACCES: "choose a port above 1023",
}


@dataclass(frozen=True)
class Address:
    host: str  # without brackets
    port: int  # 0: any free one, for a server

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Known from the text alone: what a name resolves to may change."""
        if self.host.lower() == "localhost":
            return True
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def is_wildcard(self) -> bool:
        """Every address of this machine: nothing that a device could connect to."""
        return self.host in ("0.0.0.0", "::")


def parse_address(text: str, *, option: str, any_port: bool = False) -> Address:
    """``any_port`` allows port 0, which a server may listen on and no device can connect to."""
    host, colon, port = text.strip().rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if not colon or not host or (":" in host and not bracketed) or "/" in host:
        raise ConfigError(f"{option} {text}: write it as HOST:PORT, {_EXAMPLES}")
    first = 0 if any_port else 1
    if not (port.isascii() and port.isdigit() and first <= int(port) <= _LAST_PORT):
        raise ConfigError(
            f"{option} {text}: the port {port!r} must be a number from {first} to {_LAST_PORT}, "
            f"{_EXAMPLES}"
        )
    return Address(_inside(host, option, text) if bracketed else host, int(port))


def _inside(host: str, option: str, text: str) -> str:
    address = host[1:-1]
    try:
        ip_address(address)
    except ValueError as error:
        raise ConfigError(
            f"{option} {text}: {address!r} in brackets must be an IPv6 address, {_EXAMPLES}"
        ) from error
    return address


def peer_address(peer: str) -> str:
    """HOST:PORT of gRPC's name for a peer, which writes the brackets of IPv6 as in a URL."""
    return unquote(peer).removeprefix("ipv4:").removeprefix("ipv6:")


def bind_error(listen: Address) -> str:
    """Why it cannot be listened on: gRPC does not say, so the system is asked again."""
    where = f"--listen {listen}: cannot be listened on"
    try:
        # One that has just been closed may be listened on again, by gRPC as well.
        family = socket.AF_INET6 if ":" in listen.host else socket.AF_INET
        socket.create_server((listen.host, listen.port), family=family).close()
    except OSError as error:
        way_out = _WAYS_OUT.get(error.errno or 0, "choose another address")
        reason = str(error.strerror).partition(" (while ")[0]  # Python adds the address
        return f"{where} ({reason}); {way_out}"
    return f"{where} (but it can be now); try again"
