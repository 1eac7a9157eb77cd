"""`make screenshots`: the pictures of README and docs, from runs that are made for them.

python -m tools.screenshots [--out docs/images] [--timelines]
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tests.browser.chromium import open_chromium

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

ROOT = Path(__file__).parents[1]
LARGEST = 300_000  # bytes of a picture
LAPTOP, PHONE = (1280, 1000), (390, 844)
_DEADLINE = 300_000  # milliseconds until a run is worth a picture
_METHODS = "fedoptima,fl,splitfed"

Scheme = Literal["light", "dark"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images")
    parser.add_argument("--timelines", action="store_true", help="those of docs/concepts.md only")
    arguments = parser.parse_args()
    out: Path = arguments.out
    with tempfile.TemporaryDirectory() as folder, open_chromium() as browser:
        work = Path(folder)
        for method in _METHODS.split(","):
            timeline(browser, method, out, work)
        if arguments.timelines:
            return
        live_page(browser, work / "demo", out)
        report(browser, "report", out, work / "demo")
        short = ("--set", "stop.epochs=10")
        fedoptima(
            "compare",
            "recipes/demo_digits.toml",
            "--methods",
            _METHODS,
            *short,
            "--out",
            work / "c",
        )
        report(browser, "comparison", out, work / "c")


def live_page(browser: Browser, run: Path, out: Path) -> None:
    """Of a run that goes on, with 4 device processes as slow as the recipe says."""
    recipe = ["recipes/demo_network.toml", "--paced", "--set", "training.evaluate_every=1.0"]
    with started("run", *recipe, "--dashboard", "0", "--out", run) as (address, process):
        with opened(browser, address, LAPTOP) as page:
            page.wait_for_function(
                "() => document.getElementById('progress').value > 0.7", timeout=_DEADLINE
            )
            take(page, out / "dashboard.png")
            take(page, out / "dashboard-dark.png", scheme="dark")
        process.wait(_DEADLINE / 1000)


def report(browser: Browser, name: str, out: Path, run: Path) -> None:
    path = run.parent / f"{name}.html"
    fedoptima("report", run, "-o", path)
    for size, ending in ((LAPTOP, ""), (PHONE, "-phone")):
        with opened(browser, path.as_uri(), size) as page:
            page.wait_for_function("() => document.documentElement.dataset.drawn === 'yes'")
            take(page, out / f"{name}{ending}.png")
            if not ending:
                timeline = "figure:has(#run-0-timeline)"
                take(page, out / f"{name}-timeline.png", of=timeline)


def timeline(browser: Browser, method: str, out: Path, work: Path) -> None:
    """Of a few rounds: dry, because only the times matter."""
    run, path = work / method, work / f"{method}.html"
    short = ("--dry", "--set", "stop.epochs=3", "-q")
    fedoptima("simulate", "recipes/demo_digits.toml", "--method", method, *short, "--out", run)
    fedoptima("report", run, "--no-advice", "-o", path)
    with opened(browser, path.as_uri(), LAPTOP) as page:
        page.wait_for_function("() => document.documentElement.dataset.drawn === 'yes'")
        take(page, out / f"timeline-{method}.png", of="figure:has(#run-0-timeline)")


@contextmanager
def opened(browser: Browser, address: str, size: tuple[int, int]) -> Iterator[Page]:
    phone = size == PHONE
    context = browser.new_context(
        viewport={"width": size[0], "height": size[1]},
        device_scale_factor=2 if phone else 1.5,
        is_mobile=phone,
        has_touch=phone,
        color_scheme="light",
    )
    page = context.new_page()
    page.goto(address)
    yield page
    context.close()


def take(page: Page, path: Path, *, of: str | None = None, scheme: Scheme = "light") -> None:
    """What is on the screen, or one element of the page."""
    page.emulate_media(color_scheme=scheme)
    options: Any = {"path": path, "animations": "disabled"}
    page.locator(of).screenshot(**options) if of else page.screenshot(**options)
    size = path.stat().st_size
    print(f"{path}: {size // 1000} kB", flush=True)
    if size > LARGEST:  # a README should load quickly
        raise SystemExit(f"{path} is larger than {LARGEST // 1000} kB: show less, or smaller")


def fedoptima(*arguments: str | Path) -> None:
    subprocess.run(_command(*arguments), cwd=ROOT, check=True)


@contextmanager
def started(*arguments: str | Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A run in the background, and the address of its page."""
    with subprocess.Popen(
        _command(*arguments), cwd=ROOT, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        said = ""
        for line in process.stderr:
            said += line
            if found := re.search(r"http://\S+", line):
                break
        else:
            raise SystemExit(f"the run has no page:\n{said}")
        try:
            yield found[0], process
        finally:
            process.terminate()


def _command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "fedoptima", *map(str, arguments)]


if __name__ == "__main__":
    main()
