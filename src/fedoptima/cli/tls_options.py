"""The options of everything that connects: certificates, or none and said so."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Authority = Annotated[
    Path | None, typer.Option("--tls-ca", metavar="FILE", help="The CA's certificate, ca.pem.")
]
Certificate = Annotated[
    Path | None, typer.Option("--tls-cert", metavar="FILE", help="One's own certificate.")
]
Key = Annotated[
    Path | None, typer.Option("--tls-key", metavar="FILE", help="The key of the certificate.")
]
Insecure = Annotated[
    bool, typer.Option("--insecure", help="Go without certificates, also off this machine.")
]
