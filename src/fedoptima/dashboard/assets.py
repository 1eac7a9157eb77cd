"""The page's own files, plotly's JavaScript and the palette: from memory, with a tag for caches."""

from __future__ import annotations

import gzip
import hashlib
import json
from dataclasses import dataclass
from functools import cache
from importlib import resources
from importlib.util import find_spec
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

from fedoptima.analysis.spans import Kind
from fedoptima.core.errors import ConfigError
from fedoptima.reporting.palette import KIND_NAMES, KINDS_ON_DARK, KINDS_ON_LIGHT

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
PLOTLY, PALETTE, KINDS = "plotly.js", "palette.css", "kinds.js"


@dataclass(frozen=True)
class Asset:
    body: bytes  # gzipped
    kind: str
    tag: str

    @classmethod
    def of(cls, name: str, content: bytes) -> Asset:
        tag = f'"{hashlib.sha256(content).hexdigest()[:20]}"'
        return cls(gzip.compress(content, 6), _TYPES[Path(name).suffix], tag)

    def answer(self, request: Request) -> Response:
        # Asked for each time, sent only when it has changed: an update shows at once.
        headers = {"ETag": self.tag, "Cache-Control": "no-cache", "Vary": "Accept-Encoding"}
        if request.headers.get("if-none-match") == self.tag:
            return Response(status_code=304, headers=headers)
        if "gzip" in request.headers.get("accept-encoding", ""):
            headers["Content-Encoding"] = "gzip"
            return Response(self.body, headers=headers, media_type=self.kind)
        return Response(gzip.decompress(self.body), headers=headers, media_type=self.kind)


@cache
def asset(name: str) -> Asset:
    """Of the names in `names` only."""
    if name == PLOTLY:
        return Asset.of(name, _plotly().read_bytes())
    if name == PALETTE:
        return Asset.of(name, _palette().encode())
    if name == KINDS:
        return Asset.of(name, _kinds().encode())
    return Asset.of(name, (resources.files("fedoptima.dashboard") / "static" / name).read_bytes())


@cache
def names() -> frozenset[str]:
    static = resources.files("fedoptima.dashboard") / "static"
    return frozenset({PLOTLY, PALETTE, KINDS, *(file.name for file in static.iterdir())})


def _plotly() -> Path:
    """The JavaScript in the installed package: without importing it, which takes a while."""
    found = find_spec("plotly")
    if found is None or not found.submodule_search_locations:
        raise ConfigError("the page needs plotly: pip install 'fedoptima[dashboard]'")
    return Path(found.submodule_search_locations[0]) / "package_data" / "plotly.min.js"


def _palette() -> str:
    def rule(colours: dict[Kind, str]) -> str:
        return ":root{" + "".join(f"--{_css(kind)}:{c};" for kind, c in colours.items()) + "}"

    light, dark = rule(dict(KINDS_ON_LIGHT)), rule(dict(KINDS_ON_DARK))
    return f"{light}\n@media (prefers-color-scheme: dark){{{dark}}}\n"


def _kinds() -> str:
    """A module: what each kind of time is called, and its colour's name."""
    table = {kind.value: {"name": KIND_NAMES[kind], "colour": f"--{_css(kind)}"} for kind in Kind}
    return f"export const KINDS = {json.dumps(table)};\n"


def _css(kind: Kind) -> str:
    return kind.value.replace("_", "-")
