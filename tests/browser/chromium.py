"""Debian's chromium, driven by playwright; used by these tests and by tools/screenshots.py."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Browser

_OPTIONS = [
    "--no-sandbox",  # it would not start as root, which continuous integration often is
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


class NoBrowser(Exception):
    """There is none; the message says how to get one."""


@contextmanager
def open_chromium() -> Iterator[Browser]:
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        raise NoBrowser("playwright is not installed: pip install 'fedoptima[dev]'") from None
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        raise NoBrowser("there is no browser here: apt install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=_OPTIONS)
        yield browser
        browser.close()
