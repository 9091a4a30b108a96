"""The guide, the eight questions, the ways between pages, and paper, in a real browser."""

import re
from pathlib import Path
from typing import Any

import pytest
from looker import Looker
from pages import serving, traced
from playwright.sync_api import expect
from test_page import at, fits, tab_to, violations

DOCS = Path(__file__).parents[1] / "docs"
GUIDE = (DOCS / "guide.md").read_text(encoding="utf-8")
QUESTIONS = (DOCS / "questions.md").read_text(encoding="utf-8")
PAGES = ["#page=guide", "#page=questions"]
FIGURES = re.findall(r"figures/(\w+)\.svg", GUIDE)
ANSWERS = re.findall(r"<summary>Answer</summary>\s*\*\*([A-D])\.", QUESTIONS)
OUTCOMES = re.findall(r"^Outcome: ([A-D])$", QUESTIONS, re.MULTILINE)


def squeezed(text: str) -> str:
    return re.sub(r"\s+", "", text)


def near(page: Any, name: str) -> Any:
    """Scroll to a figure, and wait until it lives."""
    figure = at(page, f"figure-{name}")
    figure.scroll_into_view_if_needed()
    page.locator(f'[data-testid="figure-{name}"][data-live="true"]').wait_for()
    page.wait_for_timeout(100)
    return figure


def without_code(text: str) -> str:
    return re.sub(r"^```.*?^```|`[^`\n]+`", "", text, flags=re.MULTILINE | re.DOTALL)


def formulas(text: str) -> list[str]:
    return re.findall(r"\$\$.+?\$\$|\$.+?\$", without_code(text), flags=re.DOTALL)


# ---- the guide


def test_every_section_formula_table_and_question_of_the_text_is_there(look: Looker):
    page = look.open(traced(), "#page=guide")
    guide = at(page, "guide")
    titles = re.findall(r"^##+ (.*)$", without_code(GUIDE), re.MULTILINE)
    assert guide.locator(".body h2[id], .body h3[id]").count() == len(titles)
    assert guide.locator(".body math").count() >= len(formulas(GUIDE)) > 100
    assert guide.locator(".prose math").count() == len(formulas(GUIDE)) - sum(
        len(formulas(title)) for title in titles if title[0].isdigit()
    )
    assert guide.locator(".prose table").count() == len(re.findall(r"^\|[-|: ]+\|$", GUIDE, re.M))
    assert guide.locator(".prose details").count() == GUIDE.count("<details>")
    fences = re.findall(r"^```\w*\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)
    assert guide.locator("pre").all_inner_texts() == fences
    assert "$" not in "".join(guide.locator(".prose :is(p, li, td, summary)").all_inner_texts())


def test_no_word_of_the_text_is_lost(look: Looker):
    """Each paragraph without formulas, links and code is in the page, letter by letter."""
    page = look.open(traced(), "#page=guide")
    page.evaluate("() => document.querySelectorAll('.prose details').forEach((d) => d.open = true)")
    shown = squeezed("".join(at(page, "guide").locator(".prose").all_inner_texts()))
    paragraphs = [part for part in re.split(r"\n\s*\n", GUIDE) if not re.search(r"[$`\[|<#]", part)]
    assert len(paragraphs) > 40
    for paragraph in paragraphs:
        plain = re.sub(r"^(\d+\.|-) ", "", paragraph, flags=re.MULTILINE).replace("*", "")
        assert squeezed(plain) in shown, paragraph


def test_no_link_is_broken(look: Looker):
    page = look.open(traced(), "#page=guide")
    near(page, "equation")  # it has one, too
    links = page.evaluate(
        "() => [...document.querySelectorAll('a[href]')].map((a) => a.getAttribute('href'))"
    )
    names = set(page.evaluate("() => [...document.querySelectorAll('[id]')].map((e) => e.id)"))
    for link in links:
        assert link.startswith(("https://", "#")), link
        if section := re.search(r"&at=(.*)", link):
            assert f"at-{section[1]}" in names, link


@pytest.mark.parametrize("name", FIGURES)
def test_each_figure_comes_to_life_when_the_reader_is_near(look: Looker, name: str):
    page = look.open(traced(), "#page=guide")
    assert at(page, "figure-nextword").get_attribute("data-live") == "false"
    figure = near(page, name)
    assert "The animal did not cross" in figure.inner_text()
    assert figure.get_by_test_id("undrawn").count() == 0
    assert figure.locator("button, svg, canvas, table").count() > 0
    at(page, f"lead-{name}").click()
    expect(at(page, "river")).to_be_visible()
    assert at(page, "station").count() == (name != "river")
    page.go_back()  # to the section that one came from
    expect(at(page, "guide")).to_be_visible()
    assert page.evaluate("scrollY") > 500
    assert look.problems == []


def test_the_equation_in_the_guide_shows_the_guides_numbers(look: Looker):
    page = look.open(traced(), "#page=guide")
    figure = near(page, "equation")
    text = figure.inner_text()
    for number in ("0.401112", "0.197776", "[1.604448, 1.197776]"):
        assert number in text
    figure.get_by_test_id("eq-source-token").click()
    assert figure.get_by_test_id("badge-eq-model").get_attribute("data-ok") == "true"
    assert look.problems == []


def test_figures_do_not_fight_over_where_they_stand(look: Looker):
    page = look.open(traced(), "#page=guide")
    for name in FIGURES:
        near(page, name)
    masks = at(page, "figure-masks")
    masks.get_by_test_id("mask-sentence").click()
    assert "masked decoder self-attention" in masks.inner_text()
    assert "cross-attention" in at(page, "figure-equation").locator(".stands").inner_text()
    names = page.evaluate("() => [...document.querySelectorAll('[id]')].map((e) => e.id)")
    assert len(names) == len(set(names))
    assert look.problems == []


def test_what_was_read_is_remembered_and_can_be_forgotten(look: Looker):
    page = look.open(traced(), "#page=guide")
    assert "0 of" in at(page, "guide").locator("nav summary").inner_text()
    page.keyboard.press("j")
    page.keyboard.press("j")
    expect(page.locator(":focus")).to_have_attribute("id", re.compile("^at-2"))
    page.locator("[data-slug]").first.scroll_into_view_if_needed()
    page.wait_for_function("() => localStorage.getItem('transduce-guide')?.includes('1-')")
    page.reload()
    summary = at(page, "guide").locator("nav summary")
    assert "0 of" not in summary.inner_text()
    page.get_by_role("button", name="Forget what I have read").click()
    assert page.evaluate("localStorage.getItem('transduce-guide')") == "[]"


def test_two_keys_at_once_go_on_by_two(look: Looker):
    page = look.open(traced(), "#page=guide")
    expect(at(page, "guide").locator("nav summary")).to_contain_text("0 of")
    key = "new KeyboardEvent('keydown', { key: 'j', bubbles: true })"
    page.evaluate(f"() => {{ for (const _ of [1, 2]) document.body.dispatchEvent({key}); }}")
    expect(page.locator(":focus")).to_have_attribute("id", re.compile("^at-2"))


def test_a_section_has_an_address(look: Looker):
    page = look.open(traced(), "#page=guide&at=9-masks")
    page.wait_for_function("() => scrollY > 1000")
    heading = page.locator("#at-9-masks")
    page.wait_for_timeout(300)
    box = heading.bounding_box()
    assert -5 < box["y"] < 200
    assert "at=9-masks" in page.evaluate("location.hash")


def test_without_storage_it_works_too(look: Looker):
    page = look.open(traced())
    page.add_init_script(
        "Object.defineProperty(window, 'localStorage', { get() { throw new Error('refused'); } });"
    )
    page.reload()
    for name in ("guide", "questions"):
        at(page, f"page-{name}").click()
        expect(at(page, name)).to_be_visible()
    page.locator("form input").nth(3).check()
    for _ in range(2):
        at(page, "score").click()
    expect(at(page, "scores")).to_be_visible()
    assert look.problems == []


def test_before_a_sentence_is_translated_figures_say_what_to_do(look: Looker):
    with serving() as server:
        page = look.at(f"http://{server.host}/#page=guide", offline=False)
        empty = at(page, "figure-equation").get_by_test_id("figure-empty")
        assert "Translate a sentence" in empty.inner_text()
        empty.get_by_role("link").click()
        expect(at(page, "text")).to_be_visible()
        page.context.close()
    assert look.problems == []


# ---- eight questions


def answer(page: Any, letters: list[str]) -> None:
    for i, letter in enumerate(letters):
        at(page, f"option-{i}-{letter}").check()


def wrong() -> list[str]:
    return ["B" if right == "A" else "A" for right in ANSWERS]


def test_all_right_is_eight_and_all_wrong_is_none(look: Looker):
    assert (len(ANSWERS), sorted(OUTCOMES)) == (8, list("AABBCCDD"))
    for letters, all_in_all, each in ((ANSWERS, 8, 2), (wrong(), 0, 0)):
        page = look.open(traced(), "#page=questions")
        at(page, "when-after").check()
        answer(page, letters)
        at(page, "score").click()
        assert at(page, "score-after-all").inner_text() == f"{all_in_all} of 8"
        for outcome in "ABCD":
            assert at(page, f"score-after-{outcome}").inner_text() == f"{each} of 2"
    assert look.problems == []


@pytest.mark.parametrize("right", range(8))
def test_each_question_counts_for_its_outcome_alone(look: Looker, right: int):
    page = look.open(traced(), "#page=questions")
    answer(page, [ANSWERS[i] if i == right else letter for i, letter in enumerate(wrong())])
    at(page, "score").click()
    for outcome in "ABCD":
        points = int(outcome == OUTCOMES[right])
        assert at(page, f"score-before-{outcome}").inner_text() == f"{points} of 2"


def test_nothing_is_told_before_it_is_scored(look: Looker):
    page = look.open(traced(), "#page=questions")
    page.evaluate("() => document.querySelectorAll('details').forEach((d) => (d.open = true))")
    shown = page.locator("body").inner_text()
    for part in re.findall(r"<summary>Answer</summary>(.*?)</details>", QUESTIONS, re.DOTALL):
        why = re.sub(r"^\s*\*\*[A-D]\.\*\*\s", "", part).split(".")[0]
        assert squeezed(why) not in squeezed(shown)
    assert page.locator("[data-told]").count() == 0
    assert at(page, "not-run").inner_text() == "Not yet run with people"


def test_then_each_says_what_is_right_and_what_the_chosen_one_believes(look: Looker):
    page = look.open(traced(), "#page=questions")
    answer(page, wrong())
    at(page, "score").click()
    assert page.locator("[data-told]").count() == 0  # the first attempt stays one
    at(page, "tell").click()
    assert page.locator("[data-told=wrong]").count() == 8
    parts = re.findall(r"<summary>Answer</summary>(.*?)</details>", QUESTIONS, re.DOTALL)
    for i, part in enumerate(parts):
        told = at(page, f"why-{i}")
        said = squeezed(told.inner_text())
        assert f"{ANSWERS[i]}isright." in said
        belief = re.search(rf"\s{wrong()[i]}(?: and [A-D])?:\s(.*?)[.;:,$]", part, re.DOTALL)
        assert belief
        assert squeezed(belief[1]).replace("*", "") in said
        assert told.get_by_role("link").get_attribute("href").startswith("#page=guide&at=")
    at(page, "why-3").get_by_role("link").click()
    expect(at(page, "guide")).to_be_visible()
    assert look.problems == []


def test_two_attempts_are_kept_and_compared(look: Looker):
    page = look.open(traced(), "#page=questions")
    answer(page, wrong())
    at(page, "score").click()
    page.reload()
    assert at(page, "when-after").is_checked()
    answer(page, [*ANSWERS[:4], *wrong()[4:]])
    at(page, "score").click()
    for outcome, change in (("A", "+2"), ("B", "+2"), ("C", "0"), ("D", "0"), ("all", "+4")):
        assert at(page, f"change-{outcome}").inner_text() == change
    at(page, "forget").click()
    assert at(page, "scores").count() == 0
    assert page.evaluate("localStorage.getItem('transduce-questions')") == "{}"
    assert not at(page, "option-0-A").is_checked()


def test_a_question_without_an_answer_is_told_once_and_then_wrong(look: Looker):
    page = look.open(traced(), "#page=questions")
    answer(page, ANSWERS[:7])
    at(page, "score").click()
    assert "question 8" in at(page, "missing").inner_text()
    assert at(page, "scores").count() == 0
    at(page, "score").click()
    assert at(page, "score-before-all").inner_text() == "7 of 8"


# ---- the ways between pages


def test_at_most_six_pages_each_reached_by_keyboard(look: Looker):
    page = look.open(traced())
    assert 4 <= page.locator("nav[aria-label=Pages] a").count() <= 6
    for name in ("guide", "questions", "compare", "river"):
        page.evaluate("document.activeElement.blur()")
        tab_to(page, f"page-{name}")
        page.keyboard.press("Enter")
        assert (
            page.locator("nav [aria-current=page]").get_attribute("data-testid") == f"page-{name}"
        )
        expect(page.locator("h1, h2").first).to_be_visible()
    page.go_back()
    page.wait_for_function("location.hash.includes('page=compare')")
    page.go_forward()
    page.wait_for_function("!location.hash.includes('page=')")
    assert look.problems == []


def test_another_page_and_back_keeps_what_is_followed(look: Looker):
    page = look.open(traced())
    at(page, "target-3").click()
    before = at(page, "now").inner_text()
    at(page, "page-guide").click()
    at(page, "page-river").click()
    assert at(page, "now").inner_text() == before


@pytest.mark.parametrize("width", [1280, 390])
def test_the_four_outcomes_are_on_the_first_screen(look: Looker, width: int):
    page = look.open(traced(), width=width)
    for words, station in (
        ("Trace a word", None),
        ("The attention equation", "attention-station"),
        ("Three patterns and masks", "attention-station"),
        ("One training step", "station"),
    ):
        page.evaluate("() => scrollTo({ top: 0, behavior: 'instant' })")
        button = page.get_by_role("button", name=words)
        assert button.bounding_box()["y"] < 700
        button.click()
        if station:
            expect(at(page, station)).to_be_visible()
    assert "training" in page.evaluate("location.hash")
    assert at(page, "target-rail").bounding_box() is not None
    fresh = look.open(traced(), width=width)
    assert at(fresh, "source-rail").bounding_box()["y"] < 750  # the sentence stays where one looks
    if width == 1280:
        rail = at(fresh, "target-rail").bounding_box()
        assert rail["y"] + rail["height"] < 720


# ---- for everybody


@pytest.mark.parametrize("fragment", PAGES)
def test_axe_finds_nothing_in_the_texts(look: Looker, fragment: str):
    page = look.open(traced(), fragment, width=390, reduced_motion="reduce")
    for figure in page.locator("figure.live").all():
        figure.scroll_into_view_if_needed()
        page.wait_for_timeout(50)
    if fragment == PAGES[1]:
        at(page, "when-after").check()
        answer(page, wrong())
        at(page, "score").click()
    assert violations(page) == []
    page.emulate_media(color_scheme="dark")
    assert violations(page, "body", ["color-contrast"]) == []
    assert fits(page)
    assert look.problems == []


# ---- paper


def test_on_paper_there_are_hatches_and_no_controls(look: Looker):
    page = look.open(traced(), "#open=decoder.1.self_attention&tab=patterns", color_scheme="dark")
    page.emulate_media(media="print", color_scheme="dark")
    page.wait_for_timeout(200)
    for control in ("nav", ".start", ".theme", ".checks", ".close", ".open", "select", ".try"):
        for each in page.locator(control).all():
            assert not each.is_visible(), control
    expect(at(page, "patterns")).to_be_visible()
    paper = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    assert paper == "rgb(255, 255, 255)"
    assert page.locator("path.hatch[d^=M]").first.evaluate(
        "e => e.getBoundingClientRect().width > 20 && getComputedStyle(e).fill.includes('url')"
    )
    hatched = page.locator(".hatch-causal").first
    style = "e => [getComputedStyle(e).printColorAdjust, getComputedStyle(e).backgroundImage]"
    adjust, image = hatched.evaluate(style)
    assert adjust == "exact"
    assert "repeating-linear-gradient" in image
    assert (
        page.evaluate("getComputedStyle(document.querySelector('.opened')).breakBefore") == "page"
    )


def test_the_guide_prints_with_all_its_figures_one_a_page(look: Looker):
    page = look.open(traced(), "#page=guide", color_scheme="dark")
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    live = page.locator("figure.live[data-live=true]")
    assert live.count() == len(FIGURES)
    for figure in live.all():
        assert figure.evaluate("e => getComputedStyle(e).breakBefore") == "page"
    answers = page.locator(".prose details p").first
    expect(answers).to_be_visible()  # what is closed on the screen is open on paper
    assert len(page.pdf(format="A4")) < 4e6
    assert look.problems == []


def test_the_printed_sheet_has_its_answers_on_a_page_of_their_own(look: Looker):
    page = look.open(traced(), "#page=questions")
    expect(at(page, "sheet")).not_to_be_visible()
    page.emulate_media(media="print")
    expect(at(page, "form")).not_to_be_visible()
    sheet = at(page, "sheet-questions").inner_text()
    assert sheet.count("☐") == 32
    assert "☑" not in sheet
    answers = at(page, "sheet-answers")
    expect(answers).to_be_visible()
    assert answers.evaluate("e => getComputedStyle(e).breakBefore") == "page"
    for i, letter in enumerate(ANSWERS):
        assert re.search(rf"{i + 1}\. .*: {letter} ", answers.inner_text())
    page.emulate_media(media="screen")
    page.get_by_text("For teachers").click()
    at(page, "with-answers").uncheck()
    page.emulate_media(media="print")
    assert at(page, "sheet-answers").count() == 0
