"""Certificates: a CA of one's own, the server's certificate, and one for each device.

A folder of certificates looks like this; certificates and keys are never overwritten::

    ca.pem      ca-key.pem            the CA; its key makes devices, and belongs in safe hands
    server.pem  server-key.pem        for the server, with the names it can be reached by
    devices/NAME.pem  NAME-key.pem    for the device NAME, which is the certificate's common name
    issued.txt                        the serial number of every certificate made for a device
    revoked.txt                       those that a server refuses

Keys are on the curve P-256, readable by their owner alone.
"""

from __future__ import annotations

import os
import re
import secrets
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID, ObjectIdentifier

from fedoptima.core.errors import ConfigError
from fedoptima.runtime.security.pem import common_name, read_certificates, read_key

DAYS = 365
LONGEST = 36_500  # days
_CA_DAYS = 3650
_CLOCKS_DIFFER = timedelta(days=1)  # a small board may start with a clock that is behind
_LONGEST_NAME = 64  # characters of a certificate's common name (RFC 5280)
DEVICE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")  # as in a fleet (config/fleet.py)
_HOST_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?")


@dataclass(frozen=True)
class Pair:
    """A certificate and its key, as files."""

    cert: Path
    key: Path


def authority_files(folder: Path) -> Pair:
    return Pair(folder / "ca.pem", folder / "ca-key.pem")


def server_files(folder: Path) -> Pair:
    return Pair(folder / "server.pem", folder / "server-key.pem")


def device_files(folder: Path, name: str) -> Pair:
    return Pair(folder / "devices" / f"{name}.pem", folder / "devices" / f"{name}-key.pem")


def issued_file(folder: Path) -> Path:
    return folder / "issued.txt"


def revoked_file(folder: Path) -> Path:
    return folder / "revoked.txt"


def local_hosts() -> list[str]:
    """What this machine is surely reached by: from itself, and by its own name."""
    name = socket.gethostname()
    return ["localhost", "127.0.0.1", "::1", *([name] if _HOST_NAME.fullmatch(name) else [])]


def make_authority(
    folder: Path, hosts: Sequence[str] = (), *, days: int = DAYS, start: datetime | None = None
) -> Pair:
    """Make the server's certificate, and first the CA where the folder has none yet.

    ``start`` is when it begins to be valid: now, unless a test needs one that is over.
    """
    authority, server = authority_files(folder), server_files(folder)
    _refuse_existing(server, "to make a new one with the same CA, move it and its key away first")
    begin = _begin(start)
    names = x509.SubjectAlternativeName([_alternative(host) for host in hosts or local_hosts()])
    _check_days(days)
    if not (authority.cert.exists() or authority.key.exists()):
        _make_ca(authority, begin, days=max(days, _CA_DAYS))
    _issue(
        authority, server, "fedoptima server", begin, days, ExtendedKeyUsageOID.SERVER_AUTH, names
    )
    return server


def check_device_name(name: str) -> None:
    if not DEVICE_NAME.fullmatch(name) or len(name) > _LONGEST_NAME or name == "server":
        raise ConfigError(
            f"{name[: 2 * _LONGEST_NAME]!r} cannot be a device's name: use at most {_LONGEST_NAME} "
            "letters, digits and _ . - (a letter or a digit first), and not 'server'"
        )


def make_device(
    folder: Path, name: str, *, days: int = DAYS, start: datetime | None = None
) -> Pair:
    """Make the certificate of one device, signed by the CA in this folder."""
    check_device_name(name)
    device = device_files(folder, name)
    _refuse_existing(device, "to make a new one, move it and its key away first")
    _check_days(days)
    begin = _begin(start)
    made = _issue(
        authority_files(folder), device, name, begin, days, ExtendedKeyUsageOID.CLIENT_AUTH
    )
    _note(issued_file(folder), [made.serial_number], name)
    return device


def revoke_device(folder: Path, name: str) -> list[int]:
    """Put every certificate made for this device so far on the folder's list of revocations.

    Returns the serial numbers that were not on it. A later certificate for the name is not touched.
    """
    known = [*_noted(issued_file(folder), name), *_serials_in(folder / "devices", name)]
    if not known:
        raise ConfigError(
            f"{name!r}: no certificate was made for this device in {folder}; give the folder of "
            "the CA with --out"
        )
    there = set(_noted(revoked_file(folder), name))
    new = [serial for serial in dict.fromkeys(known) if serial not in there]
    if new:
        _note(revoked_file(folder), new, name)
    return new


def _serials_in(folder: Path, name: str) -> list[int]:
    """Of certificates that lie there: those of earlier versions were not noted."""
    certificates = [
        read_certificates(path)[0]
        for path in sorted(folder.glob("*.pem"))
        if not path.stem.endswith("-key")
    ]
    return [each.serial_number for each in certificates if common_name(each) == name]


def _noted(path: Path, name: str) -> list[int]:
    if not path.exists():
        return []
    lines = (line.split() for line in path.read_text(encoding="utf-8").splitlines())
    return [int(words[0], 16) for words in lines if words[1:2] == [name]]


def _note(path: Path, serials: Sequence[int], name: str) -> None:
    """One line each: serial number, name, day."""
    today = f"{datetime.now(UTC):%Y-%m-%d}"
    text = "".join(f"{serial:x} {name} {today}\n" for serial in serials)
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror}") from error


def _begin(start: datetime | None) -> datetime:
    return (start or datetime.now(UTC)).replace(microsecond=0)  # all that certificates know


def _make_ca(files: Pair, begin: datetime, days: int) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    # A name of its own, so that a certificate of another CA is seen to be one, instead of looking
    # like a forgery of this CA's.
    subject = _named(f"fedoptima CA {secrets.token_hex(4)}")
    usage = _key_usage(signs_certificates=True)
    certificate = (
        _draft(subject, key.public_key(), begin, days)
        .issuer_name(subject)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .sign(key, hashes.SHA256())
    )
    _write(files, key, certificate)


def _issue(
    authority: Pair,
    files: Pair,
    name: str,
    begin: datetime,
    days: int,
    purpose: ObjectIdentifier,
    hosts: x509.SubjectAlternativeName | None = None,
) -> x509.Certificate:
    ca, ca_key = read_certificates(authority.cert)[0], read_key(authority.key)
    end, ca_end = begin + timedelta(days=days), ca.not_valid_after_utc
    if end > ca_end:
        left = max(0, (ca_end - begin).days)
        raise ConfigError(
            f"days = {days}: the CA {authority.cert} ends on {ca_end:%Y-%m-%d}; use at most {left} "
            "days, or make a new CA in another folder: fedoptima certs init --out FOLDER"
        )
    if not isinstance(ca_key, ec.EllipticCurvePrivateKey) or ca_key.public_key() != ca.public_key():
        raise ConfigError(
            f"{authority.key}: is not the key of the CA {authority.cert}; put the key there that "
            "was made with it, or make a new CA in another folder: fedoptima certs init"
        )
    key = ec.generate_private_key(ec.SECP256R1())
    draft = (
        _draft(_named(name), key.public_key(), begin, days)
        .issuer_name(ca.subject)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False
        )
    )
    if hosts is not None:
        draft = draft.add_extension(hosts, critical=False)
    certificate = draft.sign(ca_key, hashes.SHA256())
    _write(files, key, certificate)
    return certificate


def _draft(
    subject: x509.Name, key: ec.EllipticCurvePublicKey, begin: datetime, days: int
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin - _CLOCKS_DIFFER)
        .not_valid_after(begin + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _named(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host.strip("[]")))
    except ValueError:
        pass
    if not _HOST_NAME.fullmatch(host):
        raise ConfigError(
            f"--host {host}: is neither a name nor an address; give what devices will connect to, "
            "without a port, for example train.example.org or 192.168.1.10"
        )
    return x509.DNSName(host)


def _check_days(days: int) -> None:
    if not 1 <= days <= LONGEST:
        raise ConfigError(f"days = {days}: must be from 1 to {LONGEST}")


def _refuse_existing(files: Pair, way_out: str) -> None:
    for path in (files.cert, files.key):
        if path.exists():
            raise ConfigError(f"{path}: exists already and is not overwritten; {way_out}")


def _write(files: Pair, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> None:
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    public = certificate.public_bytes(serialization.Encoding.PEM)
    try:
        files.cert.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Created with its mode: a file that is restricted after writing was readable before.
        for path, mode, content in ((files.key, 0o600, secret), (files.cert, 0o644, public)):
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
                file.write(content)
    except OSError as error:
        raise ConfigError(f"{error.filename}: cannot be written: {error.strerror}") from error
