"""Every page and every station of the page: for all eyes, for all widths, with the keys alone."""

import copy
from collections.abc import Generator
from functools import cache
from typing import Any

import pytest
from alive import alive, random_model
from pages import SOURCE, TARGET, traced, translator
from test_page import Looker, at, fits, focused, tab_to, violations
from test_page_run import learning

from transduce.trace.document import run
from transduce.trace.trace import trace

CROSS = "decoder.1.cross_attention"
TABS = ("equation", "heads", "patterns", "masks", "matters")
PAGES = {
    "river": "#target=3&source=2",
    "guide": "#page=guide",
    "questions": "#page=questions",
    "compare": "#page=compare&a=0.0&b=1.0",
    "run": "#page=run",
}
OPENED = (
    "source_embedding",
    "target_embedding",
    "encoder.0.self_attention_residual",
    "decoder.1.feed_forward",
    CROSS,
    "next_word",
    "training",
)
STATIONS = {one: f"#open={one}&target=3&source=2" for one in OPENED}
STATIONS |= {tab: f"{STATIONS[CROSS]}&tab={tab}" for tab in TABS}
del STATIONS[CROSS]
PLACES = PAGES | STATIONS
FILES = ("recorded", "inside", "pre-norm inside")
PRE, POST = (f"encoder.0.self_attention_residual{end}" for end in (".norm", ""))


@cache
def document(kind: str) -> Any:
    """Two sentences and a run; the model is inside, or it is not."""
    if kind == "recorded":
        found = copy.deepcopy(traced(answers=True))
        found["traces"] += traced("It was too wide.", "Elle était trop large.")["traces"]
    else:
        model = random_model(1 if kind.startswith("pre") else 0)
        found = alive(model, "the cat saw the dog", "the dog did not see it")
    return found | {"run": run(learning(), trace(translator(), SOURCE, TARGET))}


class Opened:
    """One page that stays open, and goes from place to place by its address."""

    def __init__(self, looker: Looker, page: Any, kind: str) -> None:
        self.looker, self.page, self.kind = looker, page, kind

    def go(self, fragment: str) -> None:
        if self.kind.startswith("pre"):
            fragment = fragment.replace(POST, PRE)
        self.page.evaluate("where => { location.hash = where; }", fragment)
        self.page.wait_for_timeout(150)
        self.page.wait_for_function("!document.querySelector('[aria-busy=true]')")


@pytest.fixture(
    scope="module",
    params=[(kind, width) for kind in FILES for width in (1280, 390)],
    ids=lambda which: f"{which[0]}, {which[1]} px",
)
def opened(browser: Any, tmp_path_factory: Any, request: Any) -> Generator[Opened]:
    kind, width = request.param
    looker = Looker(browser, tmp_path_factory.mktemp("page"))
    page = looker.open(document(kind), width=width, reduced_motion="reduce")
    yield Opened(looker, page, kind)
    for context in looker.contexts:
        context.close()


@pytest.mark.parametrize("place", PLACES)
def test_each_place_is_for_everybody(opened: Opened, place: str):
    page = opened.page
    opened.looker.problems.clear()
    opened.go(PLACES[place])
    if place in STATIONS:
        assert at(page, "station").is_visible()
    for closed in page.locator("details:not([open]) > summary:visible").all():
        closed.click()
    assert fits(page)
    within = ".opened" if place in STATIONS else "body"  # the river around is a place itself
    page.emulate_media(color_scheme="light")
    assert violations(page, within) == []
    page.emulate_media(color_scheme="dark")
    assert violations(page, within, ["color-contrast"]) == []
    assert opened.looker.problems == []
    assert at(page, "undrawn").count() == 0


# ---- the keys alone

CONTROL = "button:not([role=tab], [aria-disabled=true]), input, select, summary, [role=grid]"


def to_a_control(page: Any, within: str) -> None:
    """Press Tab until the focus is on a control of this part."""
    for _ in range(80):
        page.keyboard.press("Tab")
        if page.evaluate(
            """([within, control]) => {
              const now = document.activeElement;
              const close = now.dataset.testid === "station-close";
              return now.matches(control) && !!now.closest(within) && !close;
            }""",
            [within, CONTROL],
        ):
            return
    raise AssertionError(f"no control in {within}")


def use(page: Any, within: str) -> None:
    """Use what has the focus as its kind is used; something must change."""
    state = """within => document.querySelector(within).outerHTML
      + [...document.querySelectorAll("input, select")].map((e) => e.value + e.checked)
      + document.activeElement.outerHTML + location.hash"""
    before = page.evaluate(state, within)
    kind = page.evaluate("(document.activeElement.type || document.activeElement.localName)")
    for key in {
        "range": ["ArrowRight", "ArrowLeft"],
        "select-one": ["ArrowDown", "ArrowUp"],
        "number": ["ArrowUp"],
        "checkbox": [" "],
        "radio": [" ", "ArrowDown"],
        "text": ["a"],
        "div": ["ArrowRight"],
        "table": ["ArrowRight"],
    }.get(kind, ["Enter", "ArrowRight", "ArrowLeft"]):
        page.keyboard.press(key)
        page.wait_for_timeout(60)
        if page.evaluate(state, within) != before:
            return
    raise AssertionError(f"nothing changed: {page.evaluate('document.activeElement.outerHTML')}")


@pytest.fixture(scope="module", params=FILES)
def wide(browser: Any, tmp_path_factory: Any, request: Any) -> Generator[Opened]:
    looker = Looker(browser, tmp_path_factory.mktemp("page"))
    page = looker.open(document(request.param), reduced_motion="reduce")
    yield Opened(looker, page, request.param)
    for context in looker.contexts:
        context.close()


@pytest.mark.parametrize("station", STATIONS)
def test_a_station_is_opened_used_and_left_by_keys_alone(wide: Opened, station: str):
    page = wide.page
    wide.looker.problems.clear()
    wide.go("#target=3&source=2")
    page.locator(".skip").focus()
    name = CROSS if station in TABS else station
    name = PRE if name == POST and wide.kind.startswith("pre") else name
    tab_to(page, f"open-{name}", most=200)
    page.keyboard.press("Enter")
    assert at(page, "station").is_visible()
    if station in TABS:
        for _ in range(10):
            page.keyboard.press("Tab")
            if (focused(page, "data-testid") or "").startswith("tab-"):
                break
        for _ in TABS:
            if focused(page, "data-testid") == f"tab-{station}":
                break
            page.keyboard.press("ArrowRight")
        assert at(page, f"tab-{station}").get_attribute("aria-selected") == "true"
    within = "[role=tabpanel]" if station in TABS else ".opened"
    to_a_control(page, within)
    use(page, within)
    page.keyboard.press("Escape")
    assert at(page, "station").count() == 0
    assert focused(page, "data-testid") == f"open-{name}"
    assert wide.looker.problems == []


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_reached_and_used_by_keys_alone(wide: Opened, name: str):
    page = wide.page
    wide.looker.problems.clear()
    wide.go("#page=guide" if name == "river" else "#")
    page.locator(".skip").focus()
    tab_to(page, f"page-{name}", most=20)
    page.keyboard.press("Enter")
    to_a_control(page, "main")
    use(page, "main")
    assert wide.looker.problems == []
