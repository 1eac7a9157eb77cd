"""Certificates and keys as they are read from PEM files; whatever is wrong names the file."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509.oid import NameOID, ObjectIdentifier

from fedoptima.core.errors import ConfigError


def read_certificates(path: Path) -> list[x509.Certificate]:
    """All certificates of a file: the owner's first, then those between it and the CA."""
    content = _read(path)
    try:
        return x509.load_pem_x509_certificates(content)
    except ValueError as error:
        raise ConfigError(
            f"{path}: is not a PEM certificate (-----BEGIN CERTIFICATE-----); give one made "
            "by 'fedoptima certs'"
        ) from error


def read_key(path: Path) -> PrivateKeyTypes:
    content = _read(path)
    try:
        return load_pem_private_key(content, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:  # TypeError: it has a password
        raise ConfigError(
            f"{path}: is not a PEM private key (-----BEGIN PRIVATE KEY-----), or has a "
            "password; give one made by 'fedoptima certs'"
        ) from error


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise ConfigError(
            f"{path}: no such file; make it with 'fedoptima certs init' (CA and server) or "
            "'fedoptima certs device NAME', or copy it from where it was made"
        ) from error
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be read: {error.strerror}; it must be a file that belongs to the "
            "user who starts fedoptima"
        ) from error


def common_name(certificate: x509.Certificate) -> str:
    found = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(found[0].value) if found else ""


def issuer_name(certificate: x509.Certificate) -> str:
    found = certificate.issuer.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(found[0].value) if found else certificate.issuer.rfc4514_string()


def hosts_of(certificate: x509.Certificate) -> list[str]:
    """The names and addresses that a server's certificate is good for."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    addresses = [str(address) for address in names.get_values_for_type(x509.IPAddress)]
    return [*names.get_values_for_type(x509.DNSName), *addresses]


def serves(certificate: x509.Certificate, purpose: ObjectIdentifier) -> bool:
    """A certificate that names no purpose serves any."""
    try:
        named = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:
        return True
    return purpose in named


def root_of(
    chain: Sequence[x509.Certificate], roots: Sequence[x509.Certificate]
) -> x509.Certificate | None:
    """The root the chain leads to: each certificate issued by the next, the last one by it."""
    if not all(_issued(one, by) for one, by in pairwise(chain)):
        return None
    return next((root for root in roots if _issued(chain[-1], root)), None)


def _issued(certificate: x509.Certificate, issuer: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature):  # another name, kind of key, or key
        return False
    return True
