"""Pages as somebody has them open: on a laptop or a phone, in light or dark; everything that a page
asks for or complains about is kept."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page, Request

DEADLINE = 120_000  # milliseconds, for what takes few
LAPTOP, PHONE = (1280, 800), (390, 844)
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")


@dataclass
class Visit:
    page: Page
    context: BrowserContext
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    @property
    def width(self) -> int:
        size = self.page.viewport_size
        assert size is not None
        return size["width"]

    def waits_for(self, condition: str, argument: object = None) -> None:
        """Until a JavaScript expression (or a function of the argument) holds."""
        self.page.wait_for_function(condition, arg=argument, timeout=DEADLINE)

    def ask(self, script: str, argument: object = None) -> Any:
        return self.page.evaluate(script, argument)

    def turn(self, scheme: Literal["light", "dark"]) -> None:
        """As when evening comes while the page is open."""
        self.page.emulate_media(color_scheme=scheme)

    def text(self, selector: str) -> str:
        return self.page.inner_text(selector, timeout=DEADLINE)


class Browsers:
    def __init__(self, chromium: Browser) -> None:
        self._chromium = chromium
        self._visits: list[Visit] = []

    def open(self, address: str, *, size: tuple[int, int] = LAPTOP) -> Visit:
        width, height = size
        phone = width < 600
        context = self._chromium.new_context(
            viewport={"width": width, "height": height},
            color_scheme="light",
            has_touch=phone,
            is_mobile=phone,
            service_workers="block",
        )
        visit = Visit(context.new_page(), context)
        self._visits.append(visit)

        def asked(request: Request) -> None:
            if not request.url.startswith(("data:", "blob:")):
                visit.requests.append(request.url)

        # Of the context: also what a frame, a worker or another window would ask for.
        context.on("request", asked)
        visit.page.on("pageerror", lambda error: visit.complaints.append(str(error)))
        visit.page.on(
            "console",
            lambda message: (
                visit.complaints.append(message.text)
                if message.type in ("error", "warning")
                else None
            ),
        )
        visit.page.goto(address, timeout=DEADLINE)
        return visit

    def close(self) -> None:
        complaints = [complaint for visit in self._visits for complaint in visit.complaints]
        for visit in self._visits:
            with suppress(Exception):  # a page whose server is gone may be beyond closing
                visit.context.close()
        assert not complaints, complaints
