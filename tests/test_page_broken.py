"""Pages of damaged and lying documents, odd addresses, racing questions: told, and never drawn."""

import base64
import copy
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from alive import random_model
from looker import Looker
from pages import serving
from playwright.sync_api import expect
from test_page import array, at, badges
from test_page_whatif import TEXT, in_file, small

from transduce.decode.translator import Translator
from transduce.trace.learning import Learning, snapshot
from transduce.trace.trace import trace

CROSS, SELF = "decoder.1.cross_attention", "decoder.1.self_attention"


@cache
def recorded() -> Any:
    """All that Python records of a sentence, and a run of two models."""
    one = trace(Translator(small(), names=["small"]), TEXT, answers=True)
    models = {100: random_model(4, ends=3.0), 200: small()}
    kept = [snapshot(step, model, one) for step, model in models.items()]
    points: list[Any] = [{"step": 100, "loss": 3.0, "learning_rate": 0.001}]
    return one.to_json() | {"run": Learning(one, "small", True, points, [], kept).to_json()}


def lied(what: Callable[[Any], object], document: Callable[[], Any] = recorded) -> Any:
    found = copy.deepcopy(document())
    what(found)
    return found


def tensor(numbers: np.ndarray) -> dict[str, Any]:
    data = np.ascontiguousarray(numbers, "<f4").tobytes()
    return {"shape": list(numbers.shape), "f32": base64.b64encode(data).decode()}


def undrawn(page: Any) -> str:
    at(page, "undrawn").wait_for()
    return at(page, "undrawn").inner_text()


# ---- a model that is damaged in the file


def half(document: Any, change: Callable[[Any], bytes]) -> None:
    found = document["weights"]["parameters"][f"{CROSS}.query.weight"]
    numbers = np.frombuffer(base64.b64decode(found["f16"]), "<f2").copy()
    found["f16"] = base64.b64encode(change(numbers)).decode()


def gap(document: Any) -> None:
    steps = document["weights"]["steps"]
    steps[:] = [each for each in steps if each["name"] != f"{CROSS}.value"]


def turned(document: Any) -> None:
    document["weights"]["parameters"]["encoder.0.feed_forward.inner.weight"]["shape"].reverse()


DAMAGE: dict[str, tuple[Callable[[Any], None], str]] = {
    "a number too few": (lambda d: half(d, lambda x: x[1:].tobytes()), "numbers for the shape"),
    "half a number": (lambda d: half(d, lambda x: x.tobytes()[1:]), "numbers for the shape"),
    "no numbers": (
        lambda d: half(d, lambda x: np.full_like(x, np.nan).tobytes()),
        "not all of its numbers are finite",
    ),
    "a step missing": (gap, f"{CROSS}.heads comes without {CROSS}.value"),
    "no steps": (lambda d: d["weights"].update(steps=[]), "they end without the output"),
    "rows for columns": (turned, "weights of shape"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_model_is_told_and_no_check_is_green_for_it(look: Looker, name: str):
    damage, said = DAMAGE[name]
    page = look.open(lied(damage, in_file))
    assert said in page.locator("main").inner_text()
    assert at(page, "checks").get_attribute("data-ok") == "false"
    at(page, "checks").click()
    assert badges(page)["badge-page_equals_pytorch"] == "false"
    at(page, "text").fill("a cat")
    page.keyboard.press("Enter")
    at(page, "problem").wait_for()
    assert said in at(page, "problem").inner_text()
    assert look.problems == []


@pytest.mark.parametrize("side", ["source", "target"])
def test_a_vocabulary_of_another_size_is_told(look: Looker, side: str):
    def shorten(document: Any) -> None:
        kept = document["weights"]["tokenizers"]
        kept["target"] = copy.deepcopy(kept["source"])
        for values in (kept[side]["pieces"], kept[side]["scores"]):
            del values[-40:]

    page = look.open(lied(shorten, in_file))
    at(page, "text").fill("a cat")
    page.keyboard.press("Enter")
    at(page, "problem").wait_for()
    size = small().model.config.source_vocab_size
    said = f"its {side} vocabulary has {size - 40} pieces, and its model knows {size}."
    assert at(page, "problem").inner_text() == f"This file is damaged: {said}"
    assert look.problems == []


def test_the_page_says_how_numbers_are_kept_and_how_it_computes(look: Looker):
    page = look.open(in_file())
    assert "its weights rounded to float16: this page" in at(page, "inside").inner_text()
    computed = "computed in float32"
    assert f"{computed} from weights rounded to float16" in page.locator("footer").inner_text()
    page = look.open(recorded())
    assert f"{computed}, traced" in page.locator("footer").inner_text()


# ---- documents that lie


def test_what_was_recorded_is_drawn(look: Looker):
    for fragment, there in (
        ("#open=training", "tr-step"),
        (f"#open={CROSS}&tab=matters", "attention-station"),
        ("#page=run", "run-step"),
    ):
        page = look.open(recorded(), fragment)
        at(page, there).wait_for()
        assert not at(page, "undrawn").count()
    assert look.problems == []


LIES_OF_TRAINING: dict[str, tuple[Callable[[Any], object], str]] = {
    "before": (lambda t: t["before"].__setitem__(1, t["before"][1] + 0.5), "label 1 costs"),
    "short": (lambda t: t["after"].pop(), "of each label is missing"),
    "negative": (lambda t: t["after"].__setitem__(0, -1.5), "of each label is missing"),
    "none": (lambda t: t["after"].__setitem__(0, None), "of each label is missing"),
    "module": (lambda t: t["modules"].update(output=None), "output has no lengths"),
}


@pytest.mark.parametrize("name", LIES_OF_TRAINING)
def test_a_step_that_is_not_of_this_pair_is_not_drawn(look: Looker, name: str):
    lie, said = LIES_OF_TRAINING[name]
    page = look.open(lied(lambda d: lie(d["traces"][0]["training"])), "#open=training")
    assert said in undrawn(page)
    expect(at(page, "training-station")).to_be_visible()  # the rest of it stays


def test_an_attribution_that_is_no_number_is_not_drawn(look: Looker):
    def lie(document: Any) -> None:
        found = document["traces"][0]["attribution"]["occlusion"]
        numbers = array(found["source"])
        numbers[0, 0] = np.inf
        found["source"] = tensor(numbers)

    page = look.open(lied(lie), f"#open={CROSS}&tab=matters")
    assert "occlusion of the source: not all of its numbers are finite" in undrawn(page)


def moved(block: str, query: int, key: int, *, back: bool) -> Callable[[Any], None]:
    """0.3 more weight on a key; taken from the first one, or out of nowhere."""

    def lie(run: Any) -> None:
        weights = run["snapshots"][0]["weights"]
        numbers = array(weights[block])
        numbers[:, query, key] += 0.3
        if back:
            numbers[:, query, 0] -= 0.3
        weights[block] = tensor(numbers)

    return lie


def fewer_heads(run: Any) -> None:
    weights = run["snapshots"][1]["weights"]
    weights[CROSS] = tensor(array(weights[CROSS])[:1])


LIES_OF_RUNS: dict[str, tuple[Callable[[Any], object], str]] = {
    "rows": (moved(CROSS, 1, 1, back=False), "sums to 1"),
    "leak": (moved(SELF, 0, 1, back=True), "No weight on a later piece"),
    "heads": (fewer_heads, "step 200: other maps"),
    "no maps": (lambda r: r["snapshots"][0]["weights"].clear(), "step 200: other maps"),
    "labels": (lambda r: r["snapshots"][1]["log_probs"].pop(), "step 200: log-prob"),
    "p above 1": (lambda r: r["snapshots"][0]["log_probs"].__setitem__(0, 0.5), "step 100"),
}


@pytest.mark.parametrize("name", LIES_OF_RUNS)
def test_a_run_that_does_not_fit_itself_is_not_drawn(look: Looker, name: str):
    lie, said = LIES_OF_RUNS[name]
    assert said in undrawn(look.open(lied(lambda d: lie(d["run"])), "#page=run"))


# ---- addresses, storage, races


@pytest.mark.parametrize("name", ["__proto__", "constructor", "<script>", "%E0%A4"])
def test_names_of_no_page_tab_or_column_open_the_first_one(look: Looker, name: str):
    page = look.open(recorded(), f"#page={name}")
    expect(at(page, "pair")).to_be_visible()
    page = look.open(recorded(), f"#open={CROSS}&tab={name}")
    assert at(page, "tab-equation").get_attribute("aria-selected") == "true"
    page = look.open(in_file(), f"#page=compare&a={name}&b={name}&target=0")
    at(page, "compare-a").wait_for()
    assert not at(page, "undrawn").count()
    assert look.problems == []


def test_what_others_have_stored_under_our_names_is_passed_over(look: Looker):
    page = look.open(recorded())
    page.evaluate("['guide', 'questions'].forEach((at) => localStorage['transduce-' + at] = '5')")
    for where in ("guide", "questions"):
        page.evaluate("where => { location.hash = where; }", f"#page={where}")
        page.locator("main h1").first.wait_for()
        page.wait_for_timeout(300)
        assert not at(page, "undrawn").count()
    assert look.problems == []


def test_of_two_questions_the_later_one_is_shown(look: Looker):
    with serving() as client:
        page = look.at(f"http://{client.host}/", offline=False)
        page.evaluate(
            """() => {
              const real = window.fetch;
              window.fetch = async (path, init) => {
                const found = await real(path, init);
                const late = String(init?.body).includes("too wide");
                await new Promise((soon) => setTimeout(soon, late ? 2000 : 0));
                if (late) document.body.dataset.late = "yes";
                return found;
              };
              const field = document.querySelector("[data-testid=text]");
              for (const text of ["It was too wide.", "It was tired."]) {
                field.value = text;
                field.dispatchEvent(new Event("input", { bubbles: true }));
                field.form.requestSubmit();
              }
            }"""
        )
        page.locator("body[data-late]").wait_for(state="attached")
        page.wait_for_timeout(500)
        page.evaluate("() => { location.hash = '#page=compare'; }")
        assert at(page, "compare-text-a").input_value() == "It was tired."
    assert look.problems == []
