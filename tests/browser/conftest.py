"""A real browser, and pages in it. Without one, these tests are skipped.

It is open only while tests of this folder run: playwright's synchronous interface keeps an event
loop running in the thread of the tests, where others want to start their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.browser.chromium import NoBrowser, open_chromium
from tests.browser.subjects import train
from tests.browser.visits import Browsers

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from tests.browser.serving import LivePages


@pytest.fixture(scope="package")
def chromium() -> Iterator[Browser]:
    with ExitStack() as opened:
        try:
            browser = opened.enter_context(open_chromium())
        except NoBrowser as error:
            pytest.skip(str(error))
        yield browser


@pytest.fixture(scope="module")
def browsers(chromium: Browser) -> Iterator[Browsers]:
    """Opens pages; at the end of a module, none of them may have complained."""
    opened = Browsers(chromium)
    yield opened
    opened.close()


@pytest.fixture
def live(chromium: Browser) -> Iterator[LivePages]:
    """Serves folders and opens their live pages."""
    from tests.browser.serving import LivePages

    pages = LivePages(chromium)
    yield pages
    pages.close()


@pytest.fixture(scope="package")
def sixteen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run of sixteen devices."""
    return train(tmp_path_factory.mktemp("sixteen") / "run")
