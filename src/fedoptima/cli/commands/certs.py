"""``fedoptima certs``: a CA of one's own, and certificates for the server and each device."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from fedoptima.cli.errors import explained
from fedoptima.cli.options import in_brief, needing_extra
from fedoptima.display.console import stdout

_HELP = "Make the certificates by which a server and its devices know each other."

certs = typer.Typer(
    name="certs",
    no_args_is_help=True,
    help=_HELP,
    short_help=_HELP,
)

Out = Annotated[
    Path, typer.Option("--out", metavar="DIR", help="The folder of the CA and all certificates.")
]
Days = Annotated[
    int, typer.Option("--days", metavar="N", help="How long the certificate is valid.", min=1)
]
_PORT = 50051  # in examples


def init(
    out: Out = Path("certs"),
    host: Annotated[
        list[str] | None,
        typer.Option(
            "--host",
            metavar="NAME_OR_IP",
            help="What devices connect to, in addition to localhost and this machine's name. "
            "Repeatable.",
        ),
    ] = None,
    days: Days = 365,
) -> None:
    """Make a CA and the server's certificate.

    Where the folder has a CA already, only the server's certificate is made.
    """
    with needing_extra("deploy", "making certificates", "cryptography"):
        from fedoptima.runtime.security.certificates import (
            authority_files,
            local_hosts,
            make_authority,
        )

    authority = authority_files(out)
    is_new = not authority.cert.exists()
    hosts = list(dict.fromkeys([*local_hosts(), *(host or [])]))
    server = make_authority(out, hosts, days=days)
    ca = f"made {authority.cert} and {authority.key}, a CA\n" if is_new else ""
    _say(
        f"{ca}made {server.cert} and {server.key}, for a server reached as {', '.join(hosts)}\n\n"
        "Start the server with:\n"
        f"  fedoptima server RECIPE --listen 0.0.0.0:{_PORT} "
        f"{_options(authority.cert, server.cert, server.key)}\n"
        "Make a certificate for each device with:\n"
        f"  fedoptima certs device NAME{_folder(out)}\n"
        f"Whoever has {authority.key} can make devices that the server accepts: the server needs "
        "only the three files above."
    )


def device(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="The device's name, which is its identity.")
    ],
    out: Out = Path("certs"),
    days: Days = 365,
) -> None:
    """Make the certificate of one device, signed by the CA that init has made."""
    with needing_extra("deploy", "making certificates", "cryptography"):
        from fedoptima.runtime.security.certificates import (
            authority_files,
            make_device,
            server_files,
        )

    ca = authority_files(out).cert
    made = make_device(out, name, days=days)
    server = f"{_host(server_files(out).cert)}:{_PORT}"
    copied = _options(Path(ca.name), Path(made.cert.name), Path(made.key.name))
    _say(
        f"made {made.cert} and {made.key}, valid for {days} days\n\n"
        f"Copy these to the device {name}:\n  {ca}\n  {made.cert}\n  {made.key}\n"
        "and start it there with:\n"
        f"  fedoptima device --server {server} --name {name} {copied}"
    )


def revoke(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The device's name.")],
    out: Out = Path("certs"),
) -> None:
    """Revoke every certificate made for a device so far, for example because its key was stolen.

    Servers refuse these certificates from then on. A new one for the same name works.
    """
    with needing_extra("deploy", "revoking certificates", "cryptography"):
        from fedoptima.runtime.security.certificates import (
            device_files,
            revoke_device,
            revoked_file,
        )

    serials, revoked = revoke_device(out, name), revoked_file(out)
    if not serials:
        _say(f"every certificate of {name} is on {revoked} already")
        return
    numbers = ", ".join(f"{serial:x}" for serial in serials)
    mine = device_files(out, name)
    _say(
        f"revoked the certificates of {name} with these serial numbers: {numbers}\n\n"
        f"Copy {revoked} to the server, next to its ca.pem: a running server reads it "
        "again and drops the device.\n"
        f"To make a new certificate for {name}, move {mine.cert} and {mine.key} away and type:\n"
        f"  fedoptima certs device {name}{_folder(out)}"
    )


for command in (init, device, revoke):
    certs.command(short_help=in_brief(command))(explained(command))


def _options(ca: Path, cert: Path, key: Path) -> str:
    return shlex.join(["--tls-ca", str(ca), "--tls-cert", str(cert), "--tls-key", str(key)])


def _folder(out: Path) -> str:
    return "" if out == Path("certs") else f" --out {shlex.quote(str(out))}"


def _host(server: Path) -> str:
    """The likeliest of the names in the server's certificate, if that is here."""
    from fedoptima.runtime.address import Address
    from fedoptima.runtime.security.pem import hosts_of, read_certificates

    if not server.exists():
        return "HOST"
    hosts = [Address(host, _PORT) for host in hosts_of(read_certificates(server)[0])]
    reached = [host for host in hosts if not host.is_loopback]
    return str(reached[-1]).rpartition(":")[0] if reached else "HOST"


def _say(text: str) -> None:
    stdout().print(text, soft_wrap=True)  # commands to be copied stay on one line
