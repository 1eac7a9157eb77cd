"""Certificates in their folders, as the files a server or a device is started with."""

from __future__ import annotations

from pathlib import Path

from fedoptima.runtime.security.certificates import authority_files, device_files, server_files
from fedoptima.runtime.security.tls import DeviceTLS, ServerTLS


def server_of(folder: Path) -> ServerTLS:
    files = server_files(folder)
    return ServerTLS(authority_files(folder).cert, files.cert, files.key)


def device_of(folder: Path, name: str = "pi-1", *, ca: Path | None = None) -> DeviceTLS:
    files = device_files(folder, name)
    return DeviceTLS(ca or authority_files(folder).cert, files.cert, files.key)


def bundle(*folders: Path) -> Path:
    """One file with the CAs of several folders, each of which is trusted."""
    path = folders[0] / "bundle.pem"
    path.write_text("".join(authority_files(folder).cert.read_text() for folder in folders))
    return path
