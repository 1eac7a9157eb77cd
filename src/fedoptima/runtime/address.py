"""HOST:PORT as it is typed, and whether it stays inside this machine."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address

from fedoptima.core.errors import ConfigError

_EXAMPLES = "for example 192.168.1.10:50051, train.example.org:50051 or [::1]:50051"
_LAST_PORT = 65_535


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
    """``any_port`` allows port 0, which a server may listen on and nobody can connect to."""
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
