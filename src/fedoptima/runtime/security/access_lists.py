"""Which devices may connect, besides having a certificate: a list of names, a list of revocations.

Both are text files, one entry a line, with # for comments. They are read again when they change,
so a device is let in or turned away while the server runs. A list that cannot be read any more
stays as it was, and the log says so.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Generic, TypeVar

from fedoptima.core.errors import ConfigError
from fedoptima.runtime.security.certificates import DEVICE_NAME, revoked_file
from fedoptima.runtime.security.tls import ServerTLS, stamp_of

LOG = logging.getLogger("fedoptima.server")

Entry = TypeVar("Entry")


class AccessLists:
    """``allowed``: the only names that may connect. ``revoked``: certificates that may not."""

    def __init__(
        self, allowed: Path | None = None, revoked: Path | None = None, *, ca: Path | None = None
    ) -> None:
        """``ca``: where the server's CA is; without ``revoked``, its list is the one beside it."""
        self._allowed = None if allowed is None else _List(allowed, _names)
        self._revoked: _List[int] | None = None
        if revoked is not None:
            self._revoked = _List(revoked, _serials)
        elif ca is not None:
            self._revoked = _List(revoked_file(ca.parent), _serials, optional=True)

    @classmethod
    def of(
        cls, allowed: str | Path | None, revoked: str | Path | None, tls: ServerTLS | None
    ) -> AccessLists:
        """As given with --allow-devices and --revoked."""
        if revoked is not None and tls is None:
            raise ConfigError(
                "--revoked lists certificates, and this server asks for none: give --tls-ca, "
                "--tls-cert and --tls-key as well"
            )
        return cls(
            None if allowed is None else Path(allowed),
            None if revoked is None else Path(revoked),
            ca=None if tls is None else tls.ca,
        )

    def refresh(self) -> bool:
        """Read a list that has changed, but not since the last call; whether there was one."""
        changed = [each.refresh() for each in (self._allowed, self._revoked) if each is not None]
        return any(changed)

    def refusal(self, name: str, serial: int | None) -> str | None:
        """Why the device may not be connected; None: it may. ``serial``: of its certificate."""
        if self._allowed is not None and name not in self._allowed.entries:
            return f"{name!r} is not on this server's list of devices (--allow-devices)"
        if self._revoked is not None and serial in self._revoked.entries:
            return (
                f"the certificate of {name!r} with serial number {serial:x} was revoked: get a new "
                f"one, made with 'fedoptima certs device {name}'"
            )
        return None


class _List(Generic[Entry]):
    """A list as last read; ``optional``: it is empty as long as there is no file."""

    def __init__(
        self, path: Path, read: Callable[[Path], frozenset[Entry]], *, optional: bool = False
    ) -> None:
        self._path, self._read = path, read
        self._stamp = self._seen = stamp_of(path)
        self.entries: frozenset[Entry] = frozenset()
        if self._stamp is not None or not optional:
            self.entries = read(path)

    def refresh(self) -> bool:
        stamp = stamp_of(self._path)
        settled, self._seen = stamp == self._seen, stamp
        if stamp == self._stamp or not settled:  # half a list would turn everybody away
            return False
        self._stamp = stamp
        try:
            self.entries = self._read(self._path)
        except ConfigError as error:
            LOG.error("%s; the list stays as it was", error)
            return False
        LOG.info("%s was read again: %d entries", self._path, len(self.entries))
        return True


def _names(path: Path) -> frozenset[str]:
    names = dict(_lines(path))
    for name, number in names.items():
        if not DEVICE_NAME.fullmatch(name):
            raise ConfigError(f"{path}, line {number}: {name!r} is not a valid device name")
    return frozenset(names)


def _serials(path: Path) -> frozenset[int]:
    """In hexadecimal; what follows one on its line is a remark."""
    serials = []
    for line, number in _lines(path):
        try:
            serials.append(int(line.split()[0], 16))
        except ValueError:
            raise ConfigError(
                f"{path}, line {number}: {line!r} does not begin with a serial number, as "
                "'fedoptima certs revoke NAME' writes it"
            ) from None
    return frozenset(serials)


def _lines(path: Path) -> Iterator[tuple[str, int]]:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{path}: cannot be read: it is not plain text") from error
    for number, line in enumerate(text.splitlines(), start=1):
        if entry := line.partition("#")[0].strip():
            yield entry, number
