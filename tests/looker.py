"""A browser that opens pages, and hears what they ask for and complain about."""

from pathlib import Path
from typing import Any

from transduce.trace.page import html


class Looker:
    """Opens pages, and keeps what they asked for and what they complained about."""

    def __init__(self, browser: Any, folder: Path) -> None:
        self.browser, self.folder = browser, folder
        self.contexts: list[Any] = []
        self.requests: list[str] = []
        self.problems: list[str] = []

    def at(self, address: str, *, width: int = 1280, offline: bool = True, **options: Any) -> Any:
        """Open an address in a fresh profile."""
        size = {"width": width, "height": 900}
        context = self.browser.new_context(viewport=size, offline=offline, **options)
        context.set_default_timeout(10_000)
        self.contexts.append(context)
        page = context.new_page()
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("console", self._said)
        page.goto(address)
        if address != "about:blank":
            page.locator("#app:not(:empty)").wait_for(state="attached")
        return page

    def _said(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.problems.append(message.text)

    def open(self, document: Any, fragment: str = "", **options: Any) -> Any:
        """Open the page of a document from a file, offline."""
        path = self.folder / f"page{len(self.contexts)}.html"
        path.write_text(html(document), encoding="utf-8")
        return self.at(f"file://{path}{fragment}", **options)
