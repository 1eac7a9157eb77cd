"""Who may talk to whom: certificates on both sides, unless all of it stays inside this machine.

A server accepts devices whose certificate its CA has signed; the name in that certificate is who
the device is. Whatever can be known to be wrong with the files is found before any connection.
"""

from __future__ import annotations

import logging
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from threading import Lock
from typing import ClassVar, Protocol, Self, TypeVar

import grpc
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID, ObjectIdentifier

from fedoptima.core.errors import ConfigError
from fedoptima.runtime.address import Address
from fedoptima.runtime.security.pem import (
    common_name,
    hosts_of,
    read_certificates,
    read_key,
    root_of,
    serves,
)

LOG = logging.getLogger("fedoptima.server")

_SOON = timedelta(days=14)  # time enough to renew the certificates of a fleet


@dataclass(frozen=True)
class TLSFiles:
    """Three files in PEM form, as --tls-ca, --tls-cert and --tls-key give them."""

    ca: Path  # who signs the other side's certificates; several in one file are all trusted
    cert: Path  # one's own
    key: Path

    owner: ClassVar[str]
    purpose: ClassVar[ObjectIdentifier]
    command: ClassVar[str]  # that makes such files

    @classmethod
    def of(
        cls, ca: str | Path | None, cert: str | Path | None, key: str | Path | None
    ) -> Self | None:
        """All three files, or nothing if none is given."""
        given = {"--tls-ca": ca, "--tls-cert": cert, "--tls-key": key}
        missing = [option for option, path in given.items() if path is None]
        if len(missing) == len(given):
            return None
        if ca is None or cert is None or key is None:
            raise ConfigError(
                f"{' and '.join(missing)} missing: --tls-ca, --tls-cert and --tls-key belong "
                f"together; '{cls.command}' makes the files"
            )
        return cls(Path(ca), Path(cert), Path(key))

    def _check(self) -> tuple[x509.Certificate, list[str]]:
        """The owner's certificate, and what is worth a warning."""
        roots, chain = read_certificates(self.ca), read_certificates(self.cert)
        mine, root = chain[0], root_of(chain, roots)
        if read_key(self.key).public_key() != mine.public_key():
            raise ConfigError(
                f"{self.key}: is not the key of {self.cert}; give the two that were made together"
            )
        if not serves(mine, self.purpose):
            raise ConfigError(
                f"{self.cert}: is not a {self.owner}'s certificate; make one with '{self.command}'"
            )
        if root is None:
            raise ConfigError(
                f"{self.cert}: was not signed by the CA {self.ca}; give the ca.pem it was made "
                f"with, or make another with '{self.command}'"
            )
        renew = f"move it and its key away, and make new ones with '{self.command}'"
        warnings = [_check_time(self.cert, certificate, renew) for certificate in chain]
        renew = "make a new CA and new certificates with 'fedoptima certs init --out FOLDER'"
        warnings.append(_check_time(self.ca, root, renew))
        if self.key.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH):
            warnings.append(f"{self.key}: others can read this key; type: chmod 600 {self.key}")
        return mine, [warning for warning in warnings if warning]


class ServerTLS(TLSFiles):
    owner = "server"
    purpose = ExtendedKeyUsageOID.SERVER_AUTH
    command = "fedoptima certs init"

    def check(self, listen: Address) -> list[str]:
        """Raise ConfigError if devices could never connect; return what is worth a warning."""
        certificate, warnings = self._check()
        hosts = hosts_of(certificate)
        if not listen.is_wildcard and not _covers(hosts, listen.host):
            warnings.append(
                f"{self.cert}: is good for {', '.join(hosts) or 'no host at all'}; devices that "
                f"connect to {listen.host} will refuse it ('{self.command} --host {listen.host}' "
                "makes one they accept)"
            )
        return warnings

    def credentials(self) -> grpc.ServerCredentials:
        """Files that change are read again: certificates are renewed while the server runs."""
        return grpc.dynamic_ssl_server_credentials(
            self._configuration(), _Renewal(self).configuration, require_client_authentication=True
        )

    def _configuration(self) -> grpc.ServerCertificateConfiguration:
        pair = (self.key.read_bytes(), self.cert.read_bytes())
        return grpc.ssl_server_certificate_configuration([pair], self.ca.read_bytes())

    def renewed(self) -> grpc.ServerCertificateConfiguration:
        """Of files that have changed; ConfigError if a server could not work with them."""
        _, warnings = self._check()
        for warning in warnings:
            LOG.warning(warning)
        return self._configuration()


class _Renewal:
    """Asked by gRPC before every handshake, on threads of its own."""

    def __init__(self, files: ServerTLS) -> None:
        self._files = files
        self._lock = Lock()
        self._stamps = self._look()

    def _look(self) -> list[Stamp | None]:
        files = self._files
        return [stamp_of(path) for path in (files.ca, files.cert, files.key)]

    def configuration(self) -> grpc.ServerCertificateConfiguration | None:
        """None: the certificates stay as they are."""
        with self._lock:
            stamps = self._look()
            if stamps == self._stamps:
                return None
            self._stamps = stamps
            try:
                renewed = self._files.renewed()
            except (ConfigError, OSError) as error:  # one file was copied, the other not yet
                LOG.warning("%s; the certificates stay as they were", error)
                return None
            LOG.info("certificates were read again: %s", self._files.cert)
            return renewed


class DeviceTLS(TLSFiles):
    owner = "device"
    purpose = ExtendedKeyUsageOID.CLIENT_AUTH
    command = "fedoptima certs device NAME"

    def check(self, name: str) -> list[str]:
        """Raise ConfigError if a server would refuse them; return what is worth a warning."""
        certificate, warnings = self._check()
        certified = common_name(certificate)
        if certified != name:
            raise ConfigError(
                f"--name {name}: the certificate {self.cert} is that of {certified!r}, and a "
                f"device goes by its certificate's name; use --name {certified}, or make one with "
                f"'fedoptima certs device {name}'"
            )
        return warnings

    def credentials(self) -> grpc.ChannelCredentials:
        return grpc.ssl_channel_credentials(
            self.ca.read_bytes(), self.key.read_bytes(), self.cert.read_bytes()
        )


Files = TypeVar("Files", bound=TLSFiles)


def choose_security(address: Address, files: Files | None, *, insecure: bool) -> Files | None:
    """The files to use, or None for a plain connection, which must be harmless or asked for."""
    if files is not None and insecure:
        raise ConfigError(
            "--insecure contradicts --tls-ca, --tls-cert and --tls-key: leave out --insecure for "
            "an encrypted connection, or the certificates for a plain one"
        )
    if files is None and not insecure and not address.is_loopback:
        raise ConfigError(
            f"{address} is reached over the network, where anyone could read the data or take "
            "part: make certificates with 'fedoptima certs init' and 'fedoptima certs device "
            "NAME' and give them with --tls-ca, --tls-cert and --tls-key; or pass --insecure to "
            "use none"
        )
    return files


class Call(Protocol):
    """What is needed of gRPC's servicer context."""

    def auth_context(self) -> Mapping[str, Iterable[bytes]]: ...


def peer_serial(call: Call) -> int | None:
    """The serial number of the certificate that the device of this call has proved to own."""
    found = list(call.auth_context().get("x509_pem_cert", ()))
    return x509.load_pem_x509_certificate(found[0]).serial_number if found else None


def peer_name(call: Call) -> str | None:
    """The name in the certificate that the device of this call has proved to own."""
    proved = call.auth_context()
    if list(proved.get("transport_security_type", ())) != [b"ssl"]:
        return None
    names = list(proved.get("x509_common_name", ()))
    return names[0].decode(errors="replace") if len(names) == 1 else None


Stamp = tuple[int, int, int]


def stamp_of(path: Path) -> Stamp | None:
    """Changes when the file does; None: there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _check_time(path: Path, certificate: x509.Certificate, renew: str) -> str:
    """A warning, or nothing, if it is valid now."""
    now = datetime.now(UTC)
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now > end:
        raise ConfigError(f"{path}: expired on {_day(end)} (now {_day(now)}): {renew}")
    if now < begin:
        raise ConfigError(
            f"{path}: is not valid before {_day(begin)}, and this machine's clock says "
            f"{_day(now)}: set the clock"
        )
    soon = end - now < min(_SOON, (end - begin) / 10)
    return f"{path}: expires on {_day(end)}: {renew}" if soon else ""


def _covers(hosts: Iterable[str], host: str) -> bool:
    try:
        return str(ip_address(host)) in hosts
    except ValueError:
        return host.lower() in (known.lower() for known in hosts)


def _day(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M} UTC"
