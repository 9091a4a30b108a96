"""Every page and every station of the page: for all eyes, for all widths, with the keys alone."""

import copy
import re
from collections.abc import Callable, Generator
from functools import cache
from typing import Any

import pytest
from alive import alive, random_model
from looker import Looker
from pages import traced
from playwright.sync_api import expect
from test_page import array, at, badges, change, fits, focused, packed, tab_to, violations
from test_page_run import learning

CROSS = "decoder.1.cross_attention"
TABS = ("equation", "heads", "patterns", "masks", "matters")
PAGES = {
    "river": "#target=3&source=2",
    "guide": "#page=guide",
    "questions": "#page=questions",
    "compare": "#page=compare&a=0.0&b=0.1",
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
POST = "encoder.0.self_attention_residual"
PRE = (f"{POST}.norm", f"{POST}.sum", "decoder.1.feed_forward")  # its norms stand by themselves


@cache
def document(kind: str) -> Any:
    """Two sentences and a run; the model is inside, or it is not."""
    if kind in LIES:
        found = copy.deepcopy(document("recorded"))
        LIES[kind](found)
        return found
    if kind == "recorded":
        found = copy.deepcopy(traced(answers=True))
        found["traces"] += traced("It was too wide.", "Elle était trop large.")["traces"]
    else:
        model = random_model(1 if kind == "pre-norm" else 0)
        found = alive(model, "the cat saw the dog", "the dog did not see it")
    return found | {"run": learning().to_json()}


class Opened:
    """One page that stays open, and goes from place to place by its address."""

    def __init__(self, looker: Looker, page: Any) -> None:
        self.looker, self.page = looker, page

    def go(self, fragment: str) -> None:
        self.page.evaluate(
            """async where => {
              location.hash = where;
              for (let i = 0; i < 3; i++) await new Promise(requestAnimationFrame);
            }""",
            fragment,
        )
        self.page.wait_for_function("!document.querySelector('[aria-busy=true]')")


@pytest.fixture(scope="module")
def shared(browser: Any, tmp_path_factory: Any) -> Generator[Callable[..., Opened]]:
    """Pages that stay open from test to test: to open one takes longer than to look at it."""
    looker = Looker(browser, tmp_path_factory.mktemp("page"))

    @cache
    def opened(kind: str, width: int = 1280) -> Opened:
        return Opened(looker, looker.open(document(kind), width=width, reduced_motion="reduce"))

    yield opened
    for context in looker.contexts:
        context.close()


SMALL = """within => [...document.querySelector(within).querySelectorAll("*")]
  .filter((e) => e.matches("button, input, select, summary") && !e.closest("header, footer"))
  .filter((e) => e.checkVisibility())
  .filter((e) => !e.matches("[type=checkbox], [type=radio], [aria-hidden]"))
  .map((e) => [e.getBoundingClientRect(), e.outerHTML.slice(0, 90)])
  .filter(([{ width, height }]) => width && (width < 24 || height < 24))
  .map(([{ width, height }, html]) => `too small for a finger, ${width} x ${height}: ${html}`)"""

UNREACHED = """within => [...document.querySelector(within).querySelectorAll("*")]
  .filter((e) => e.matches("button, input, select, summary, a[href]"))
  .filter((e) => e.checkVisibility() && !e.disabled && !e.ariaHidden && e.tabIndex < 0)
  .filter((e) => {  // of several that are one stop for Tab, the arrows reach the others
    const group = "[role], table, ul, ol, section";
    const all = e.closest("[role=toolbar]") ?? e.parentElement.closest(group);
    return !all?.querySelector("[tabindex='0']") && all?.tabIndex !== 0;
  })
  .map((e) => `no key reaches ${e.outerHTML.slice(0, 90)}`)"""
UNSEEN = """within => {
  const kinds = new Map();  // styles are by name and class
  for (const e of document.querySelector(within).querySelectorAll("*"))
    if (e.tabIndex >= 0 && e.checkVisibility()) kinds.set(e.localName + e.className, e);
  return [...kinds.values()].filter((e) => {
    e.focus({ preventScroll: true });
    const { outlineStyle, outlineWidth } = getComputedStyle(e);
    return e.matches(":focus") && (outlineStyle === "none" || parseFloat(outlineWidth) < 1);
  }).map((e) => `focus is not seen on ${e.outerHTML.slice(0, 90)}`);
}"""


def faults(opened: Opened, fragment: str) -> list[str]:
    """What is wrong with a place for somebody: by axe, its width, its controls, the console."""
    page, looker = opened.page, opened.looker
    looker.problems.clear()
    opened.go(fragment)
    within = ".opened" if "open=" in fragment else "body"  # the river around is a place itself
    expect(page.locator(within)).to_be_visible()
    page.evaluate("document.querySelectorAll('details').forEach((e) => { e.open = true; })")
    page.emulate_media(color_scheme="light")
    found = violations(page, within)
    page.emulate_media(color_scheme="dark")
    found += violations(page, within, ["color-contrast"])
    found += [] if fits(page) else ["the page scrolls sideways"]
    page.keyboard.press("Tab")  # from now on focus is shown, as to who uses the keys
    for check in (SMALL, UNREACHED, UNSEEN):
        found += page.evaluate(check, within)
    found += at(page, "undrawn").all_inner_texts()
    return found + looker.problems


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("kind", "width"), [("recorded", 1280), ("inside", 390)])
def test_each_place_is_for_everybody(
    shared: Callable[..., Opened], kind: str, width: int, place: str
):
    assert faults(shared(kind, width), PLACES[place]) == []


def test_so_are_the_stations_of_pre_norm(shared: Callable[..., Opened]):
    opened = shared("pre-norm", 390)
    for station in PRE:
        assert faults(opened, f"#open={station}&target=3&source=2") == []


@pytest.mark.parametrize("kind", ["recorded", "inside"])
@pytest.mark.parametrize("width", [1280, 390])
def test_no_place_scrolls_sideways(shared: Callable[..., Opened], kind: str, width: int):
    opened = shared(kind, 390 if kind == "inside" else 1280)
    opened.page.set_viewport_size({"width": width, "height": 900})
    wide = []
    for place, fragment in PLACES.items():
        opened.go(fragment)
        wide += [] if fits(opened.page) else [place]
    assert wide == []


@pytest.fixture
def paper(shared: Callable[..., Opened]) -> Generator[Opened]:
    opened = shared("recorded")
    opened.page.set_viewport_size({"width": 688, "height": 900})  # of A4, less its margins
    opened.page.emulate_media(media="print", color_scheme="dark")
    yield opened
    opened.page.set_viewport_size({"width": 1280, "height": 900})
    opened.page.emulate_media(media="screen", color_scheme="light")


def test_on_paper_no_table_is_cut_below(paper: Opened):
    page = paper.page
    for fragment in STATIONS.values():
        paper.go(fragment)
        cut = page.evaluate(
            """() => [...document.querySelectorAll(".opened *")].filter((e) => e.checkVisibility()
              && getComputedStyle(e).overflowY !== "visible" && e.scrollHeight > e.clientHeight + 2
              && e.clientHeight > 20).map((e) => e.outerHTML.slice(0, 90))"""
        )
        assert cut == []
        expect(at(page, "station-close")).not_to_be_visible()
    white = "getComputedStyle(document.documentElement).backgroundColor"
    assert page.evaluate(white) == "rgb(255, 255, 255)"


# ---- the keys alone

CONTROL = "button:not([role=tab], [aria-disabled=true]), input, select, summary, [role=grid]"
KEYS = {
    "range": ["ArrowRight", "ArrowLeft"],
    "select-one": ["ArrowDown", "ArrowUp"],
    "number": ["ArrowUp"],
    "checkbox": [" "],
    "radio": [" ", "ArrowDown"],
    "text": ["a"],
    "div": ["ArrowRight"],
    "table": ["ArrowRight"],
}


def use_a_control(page: Any, within: str) -> None:
    """Tab to the first control of a part that is not yet what pressing it makes it; use it."""
    state = """within => document.querySelector(within).outerHTML
      + [...document.querySelectorAll("input, select")].map((e) => e.value + e.checked)
      + location.hash"""
    here = """([within, control]) => {
      const now = document.activeElement;
      const ours = now.matches(control) && now.closest(within);
      return ours && now.dataset.testid !== "station-close" ? now.type || now.localName : null;
    }"""
    for _ in range(80):
        page.keyboard.press("Tab")
        kind = page.evaluate(here, [within, CONTROL])
        if kind is None:
            continue
        before = page.evaluate(state, within)
        for key in KEYS.get(kind, ["Enter"]):
            page.keyboard.press(key)
            page.wait_for_timeout(60)
            if page.evaluate(state, within) != before:
                return
        assert focused(page, "aria-pressed") != "false"
    raise AssertionError(f"nothing changes in {within}")


@pytest.fixture
def wide(shared: Callable[..., Opened]) -> Opened:
    opened = shared("recorded")
    opened.looker.problems.clear()
    return opened


def test_tab_goes_through_the_river_from_station_to_station(wide: Opened):
    page = wide.page
    wide.go("#target=3&source=2")
    page.locator(".skip").focus()
    there = {each.get_attribute("data-testid") for each in at(page, re.compile("^open-")).all()}
    reached = set()
    for _ in range(150):
        page.keyboard.press("Tab")
        reached.add(focused(page, "data-testid"))
        if there <= reached:
            break
    assert there - reached == set()
    assert {f"open-{name}" for name in OPENED} <= there


@pytest.mark.parametrize("station", STATIONS)
def test_a_station_is_opened_used_and_left_by_keys_alone(wide: Opened, station: str):
    page = wide.page
    wide.go("#target=3&source=2")
    name = CROSS if station in TABS else station
    at(page, f"open-{name}").focus()
    page.keyboard.press("Enter")
    expect(at(page, "station")).to_be_visible()
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
    use_a_control(page, within)
    page.keyboard.press("Escape")
    assert at(page, "station").count() == 0
    assert focused(page, "data-testid") == f"open-{name}"
    assert wide.looker.problems == []


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_reached_and_used_by_keys_alone(wide: Opened, name: str):
    page = wide.page
    wide.go("#page=guide" if name == "river" else "#")
    page.locator(".skip").focus()
    tab_to(page, f"page-{name}", most=20)
    page.keyboard.press("Enter")
    use_a_control(page, "main")
    assert wide.looker.problems == []


# ---- what must hold, and is told where it does not


def add(found: Any, *names: str) -> None:
    """A hundredth more in every number of these tensors."""
    for name in names:
        change(found["traces"][0], name, lambda x: x + 0.01)


def other_sums(found: Any) -> None:
    add(found, "source_embedding.positions", "target_embedding.positions", f"{POST}.sum")
    add(found, "decoder.1.feed_forward.activation", f"{CROSS}.heads")
    found["traces"][0]["output"]["log_probs"][3] -= 0.01


def other_weights(found: Any) -> None:
    add(found, f"{CROSS}.weights")
    change(found["traces"][0], "output", lambda x: x * 1.5)


def other_maps(found: Any) -> None:
    weights = found["run"]["snapshots"][-1]["weights"]
    weights[CROSS] = packed(array(weights[CROSS]) + 0.01)


LIES = {"other sums": other_sums, "other weights": other_weights, "other maps": other_maps}


@pytest.mark.parametrize(
    ("lie", "place", "badge"),
    [
        ("other sums", "source_embedding", "embedding-sum"),
        ("other sums", "source_embedding", "positions-formula"),
        ("other sums", "target_embedding", "embedding-sum"),
        ("other sums", POST, "direct-sum"),
        ("other sums", "decoder.1.feed_forward", "ff-curve"),
        ("other sums", "equation", "eq-model"),
        ("other sums", "training", "loss-sum"),
        ("other weights", "heads", "rows-sum"),
        ("other weights", "patterns", "sum"),
        ("other weights", "masks", "mask-own"),
        ("other weights", "matters", "matters-sum"),
        ("other weights", "training", "slopes-own"),
    ],
)
def test_each_station_tells_what_does_not_hold(
    shared: Callable[..., Opened], lie: str, place: str, badge: str
):
    for kind, told in (("recorded", "true"), (lie, "false")):
        opened = shared(kind)
        page = opened.page
        opened.go("#")
        opened.go(PLACES[place])
        if place == "equation":
            at(page, "eq-source-token").click()
        elif place == "masks":
            at(page, "mask-sentence").click()
            at(page, "mask-scores").select_option(index=1)
        assert badges(page)[f"badge-{badge}"] == told


def test_a_map_of_a_run_that_does_not_hold_is_not_drawn(shared: Callable[..., Opened]):
    held, broken = shared("recorded"), shared("other maps")
    held.go(PAGES["run"])
    assert badges(held.page)["badge-sum"] == "true"
    broken.go(PAGES["run"])
    assert "sums to 1" in at(broken.page, "undrawn").inner_text()
