"""Two panels of the page: what matters beside attention, and two sentences or models compared."""

import copy
import json
import math
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from looker import Looker
from pages import SOURCE, TARGET, serving, traced, translator
from playwright.sync_api import expect
from test_attribution import decoded
from test_page import at

from transduce.bundle import Bundle
from transduce.decode.translator import Translator
from transduce.ids import BOS
from transduce.trace.attribution import attribution
from transduce.trace.document import document
from transduce.trace.trace import trace
from transduce.trace.weights import weights

BLOCK = "decoder.1.cross_attention"
OTHER = "The animal did not cross the street because it was too wide."


@cache
def other_model() -> Translator:
    """The same model, its parameters moved a little: another checkpoint of the same run."""
    first = translator().bundles[0]
    model = copy.deepcopy(first.model)
    random = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * parameter.std() * torch.randn(parameter.shape, generator=random)
    bundle = Bundle(model, first.source_tokenizer, first.target_tokenizer, first.about)
    return Translator(bundle, names=["later"])


@cache
def compared() -> Any:
    """Two sentences by two models, the first with a target of its own."""
    pairs = ((SOURCE, TARGET), (OTHER, "Elle était trop large."))
    mine, others = ([trace(one, *pair) for pair in pairs] for one in (translator(), other_model()))
    return document(mine, [others])


def opened(looker: Looker, payload: Any, fragment: str, **options: Any) -> Any:
    page = looker.open(payload, fragment, **options)
    page.wait_for_timeout(100)
    return page


def column(page: Any, side: str, way: str) -> list[float]:
    cells = at(page, f"matters-{side}").locator(f'[data-way="{way}"][data-value]')
    return [float(cell.get_attribute("data-value")) for cell in cells.all()]


# ---- what matters


def test_three_measures_stand_beside_each_other_with_the_numbers_of_torch(look: Looker):
    payload = traced(answers=True)
    (one,) = payload["traces"]
    source = [token["id"] for token in one["source"]["tokens"]]
    labels = [token["id"] for token in one["target"]["labels"]]
    model = translator().bundles[0].model
    wanted = attribution(model, source, labels)
    with torch.no_grad():
        whole = model(torch.tensor([source]), torch.tensor([[BOS, *labels[:-1]]]))
    page = opened(look, payload, f"#open={BLOCK}&tab=matters&head=2&target=4")
    weights = decoded(one["tensors"][f"{BLOCK}.weights"])[2]
    own = decoded(one["tensors"]["decoder.1.self_attention.weights"])[2]
    for t in (4, 0, len(labels) - 1):
        at(page, "matters-label").select_option(str(t))
        assert column(page, "source", "attention") == pytest.approx(weights[t], abs=1e-7)
        assert column(page, "target", "attention") == pytest.approx(own[t, : t + 1], abs=1e-7)
        for way, sides in wanted._asdict().items():
            assert column(page, "source", way) == pytest.approx(sides.source[t], abs=1e-6)
            assert column(page, "target", way) == pytest.approx(sides.target[t, : t + 1], abs=1e-6)
        p = math.exp(whole[0, t].double().log_softmax(-1)[labels[t]])
        assert f"= {p:.4f}" in at(page, "matters").inner_text()
    at(page, "matters-layer").select_option("0")
    at(page, "matters-head").select_option("mean")
    mean = decoded(one["tensors"]["decoder.0.cross_attention.weights"]).mean(0)
    assert column(page, "source", "attention") == pytest.approx(mean[t], abs=1e-6)
    assert "head=mean" in page.url
    assert look.problems == []


def test_it_says_how_far_they_agree_as_by_hand(look: Looker):
    payload = traced(answers=True)
    (one,) = payload["traces"]
    page = opened(look, payload, f"#open={BLOCK}&tab=matters&head=mean&target=4")
    weights = decoded(one["tensors"][f"{BLOCK}.weights"]).mean(0)
    ways = [
        abs(weights.astype(np.float64)),
        abs(decoded(one["attribution"]["occlusion"]["source"])),
        abs(decoded(one["attribution"]["gradient"]["source"])),
    ]
    ranks = [np.argsort(np.argsort(way, axis=1), axis=1) for way in ways]
    rows = at(page, "matters-agreement").locator("tbody tr").all()
    for row, (a, b) in zip(rows, ((0, 1), (0, 2), (1, 2)), strict=True):
        all_of = [np.corrcoef(x, y)[0, 1] for x, y in zip(ranks[a], ranks[b], strict=True)]
        shown = [float(c.get_attribute("data-value")) for c in row.locator("td").all()[:2]]
        assert shown == pytest.approx([all_of[4], np.mean(all_of)], abs=1e-6)


def test_the_case_of_most_disagreement_is_that_of_these_numbers(look: Looker):
    payload = traced(answers=True)
    (one,) = payload["traces"]
    page = opened(look, payload, f"#open={BLOCK}&tab=matters&head=1&target=0")
    weights = decoded(one["tensors"][f"{BLOCK}.weights"])[1]
    losses = abs(decoded(one["attribution"]["occlusion"]["source"]))
    rows = np.arange(len(weights))
    seen, matters = weights.argmax(1), losses.argmax(1)
    gap = (weights[rows, seen] - weights[rows, matters]) * (
        losses[rows, matters] - losses[rows, seen]
    )
    t = int(gap.argmax())
    case = page.locator('p[data-testid="matters-case"]')
    assert gap[t] > 0
    assert case.get_attribute("data-position") == str(t)
    assert case.get_attribute("data-seen") == str(seen[t])
    assert case.get_attribute("data-matters") == str(matters[t])
    assert f"{losses[t, matters[t]]:.3f}" in case.inner_text()
    at(page, "matters-show").focus()
    page.keyboard.press("Enter")
    assert at(page, "matters-label").input_value() == str(t)
    assert "mixed in, not what mattered" in at(page, "matters").inner_text()


def test_where_it_was_not_measured_the_page_says_so(look: Looker):
    page = opened(look, traced(), f"#open={BLOCK}&tab=matters")
    assert "It was not measured for this sentence" in at(page, "matters-none").inner_text()
    payload = copy.deepcopy(traced())
    payload["traces"][0]["left_out"] = "what each piece matters: a side has more than 64 pieces"
    page = opened(look, payload, f"#open={BLOCK}&tab=matters")
    assert "more than 64 pieces" in at(page, "matters-none").inner_text()
    # Without maps the two measures are there all the same.
    payload = copy.deepcopy(traced(answers=True))
    payload["traces"][0]["tensors"] = {}
    payload["traces"][0]["left_out"] = "all tensors: too many"
    page = opened(look, payload, "#open=encoder.0.self_attention&tab=matters&target=4")
    assert at(page, "matters-source").locator('[data-way="occlusion"][data-value]').count() > 5
    assert "not measured here" in at(page, "matters-source").inner_text()
    assert look.problems == []


def test_numbers_of_other_pieces_are_not_drawn(look: Looker):
    payload = copy.deepcopy(traced(answers=True))
    side = payload["traces"][0]["attribution"]["occlusion"]
    side["source"] = side["target"]
    page = opened(look, payload, f"#open={BLOCK}&tab=matters")
    assert "occlusion of the source" in at(page, "undrawn").inner_text()


def alive(payload: Any) -> Any:
    """A file with the model inside, whose traces have no tensors: the page computes them."""
    payload = copy.deepcopy(payload)
    payload["weights"] = weights(translator().bundles[0], "float32")
    for one in payload["traces"]:
        one["tensors"], one["attribution"] = {}, None
        one["padded"]["weights"], one["cached"]["weights"] = {}, {}
    return payload


def test_the_model_inside_hides_each_piece_as_torch_does(look: Looker):
    payload = alive(traced())
    (one,) = payload["traces"]
    source = [token["id"] for token in one["source"]["tokens"]]
    labels = [token["id"] for token in one["target"]["labels"]]
    wanted = attribution(translator().bundles[0].model, source, labels).occlusion
    page = opened(look, payload, f"#open={BLOCK}&tab=matters&target=4")
    assert "The model in this page" in at(page, "matters-none").inner_text()
    at(page, "matters-measure").click()
    at(page, "matters-source").wait_for(timeout=60_000)
    for t in (4, len(labels) - 1):
        at(page, "matters-label").select_option(str(t))
        assert column(page, "source", "occlusion") == pytest.approx(wanted.source[t], abs=1e-4)
        found = column(page, "target", "occlusion")
        assert found == pytest.approx(wanted.target[t, : t + 1], abs=1e-4)
    at(page, "matters-label").select_option("0")
    assert column(page, "target", "occlusion") == []  # BOS has no number where it is all there is
    assert "not measured here" in at(page, "matters-source").inner_text()
    assert look.problems == []


# ---- compare


def numbers(page: Any, side: int, name: str) -> list[float]:
    """Of one side's column in the table of pieces."""
    found = []
    for row in at(page, "compare-rows").locator("tbody tr").all():
        cells = row.locator("td").all()
        half = cells[:4] if side == 0 else cells[4:]
        found += [
            float(value)
            for cell in half
            if (value := cell.get_attribute(f"data-{name}")) is not None
        ]
    return found


@pytest.mark.parametrize(("a", "b"), [("0.0", "0.1"), ("0.1", "1.0"), ("0.0", "1.0")])
def test_each_piece_has_its_numbers_beside_the_others(look: Looker, a: str, b: str):
    payload = compared()
    page = opened(look, payload, f"#page=compare&a={a}&b={b}")
    models = [payload, *payload["others"]]
    labels = []
    for side, key in enumerate((a, b)):
        model, sentence = map(int, key.split("."))
        one = models[model]["traces"][sentence]
        labels.append([token["piece"] for token in one["target"]["labels"]])
        output = one["output"]
        assert numbers(page, side, "log-prob") == pytest.approx(output["log_probs"], abs=1e-9)
        assert numbers(page, side, "p") == pytest.approx(np.exp(output["log_probs"]), abs=1e-9)
        assert numbers(page, side, "entropy") == pytest.approx(output["entropy"], abs=1e-9)
        total = at(page, f"compare-sum-{'ab'[side]}").get_attribute("data-value")
        assert float(total) == pytest.approx(output["log_prob"])
    first = next((i for i, (x, y) in enumerate(zip(*labels, strict=False)) if x != y), None)
    parting = at(page, "compare-parting")
    assert parting.get_attribute("data-at") == (None if first is None else str(first))
    if first is None:
        assert "The same pieces in both." in parting.inner_text()
    assert look.problems == []


def test_the_difference_map_is_one_minus_the_other_on_a_symmetric_scale(look: Looker):
    payload = compared()
    page = opened(look, payload, f"#page=compare&a=0.0&b=1.0&map={BLOCK}:1")
    mine, theirs = (
        decoded(one["traces"][0]["tensors"][f"{BLOCK}.weights"])[1].astype(np.float64)
        for one in (payload, payload["others"][0])
    )
    cells = page.locator('[data-testid="compare-difference"] rect[data-by]').all()
    shown = np.array([float(c.get_attribute("data-by")) for c in cells]).reshape(mine.shape)
    assert np.allclose(shown, theirs - mine, atol=1e-12)
    limit = abs(shown).max()
    scale = at(page, "compare-scale")
    assert float(scale.get_attribute("data-limit")) == pytest.approx(limit)
    assert f"−{limit:.4f}" in scale.inner_text()
    assert f"+{limit:.4f}" in scale.inner_text()
    opacity = [float(c.get_attribute("fill-opacity")) for c in cells]
    assert np.allclose(opacity, abs(shown).ravel() / limit)
    assert at(page, "compare-map-a").get_by_test_id(f"matrix-{BLOCK}-1").count() == 1
    i, j = map(int, np.unravel_index(abs(shown).argmax(), shown.shape))
    said = at(page, "compare-said")
    sign = "−" if shown[i, j] < 0 else "+"
    assert (
        f"A {mine[i, j]:.4f}, B {theirs[i, j]:.4f}, B − A = {sign}{limit:.4f}" in said.inner_text()
    )
    page.locator('[data-testid="compare-difference"] [role=grid]').focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowDown" if i == 0 else "ArrowUp")
    row = 1 if i == 0 else i - 1
    assert f"A {mine[row, 0]:.4f}, B {theirs[row, 0]:.4f}" in said.inner_text()
    assert look.problems == []


def test_maps_of_other_pieces_are_not_subtracted_and_the_page_says_why(look: Looker):
    page = opened(look, compared(), f"#page=compare&a=0.0&b=0.1&map={BLOCK}:mean")
    mine, theirs = (len(one["target"]["input"]) for one in compared()["traces"])
    assert f"A has {mine} queries, B has {theirs}" in at(page, "compare-why-not").inner_text()
    assert at(page, "compare-difference").count() == 0
    expect(at(page, "compare-map-b")).to_be_visible()
    # As many pieces, one of them another.
    payload = copy.deepcopy(compared())
    payload["others"][0]["traces"][0]["source"]["tokens"][1]["piece"] = "▁dog"
    page = opened(look, payload, "#page=compare&a=0.0&b=1.0&map=encoder.0.self_attention:0")
    why = at(page, "compare-why-not").inner_text()
    assert "query 1 is" in why
    assert "“dog” in B" in why
    assert at(page, "compare-difference").count() == 0


def test_presets_and_choices_are_in_the_address(look: Looker):
    page = opened(look, compared(), "#page=compare")
    at(page, "compare-preset-it").focus()
    page.keyboard.press("Enter")
    assert "a=0.0&b=0.1" in page.url
    at(page, "compare-block").select_option("encoder.1.self_attention")
    at(page, "compare-head").select_option("3")
    at(page, "compare-model-b").select_option("1")
    assert "b=1.1" in page.url
    assert "map=encoder.1.self_attention%3A3" in page.url
    address = page.url
    again = look.at(address)
    assert again.locator('[data-testid="compare-sentence-b"]').input_value() == "1"
    assert again.locator('[data-testid="matrix-encoder.1.self_attention-3"]').count() == 2
    assert at(again, "compare-block").input_value() == "encoder.1.self_attention"
    at(again, "page-river").click()
    assert "map=" not in again.url
    assert look.problems == []


def test_the_checks_of_both_are_shown_and_a_failing_one_too(look: Looker):
    payload = copy.deepcopy(compared())
    payload["others"][0]["traces"][0]["invariants"][0]["ok"] = False
    page = opened(look, payload, "#page=compare&a=0.0&b=1.0")
    told = {}
    for side in "ab":
        badges = at(page, f"compare-checks-{side}").locator("[data-ok]").all()
        told[side] = [badge.get_attribute("data-ok") for badge in badges]
    assert set(told["a"]) == {"true"}
    assert told["b"].count("false") == 1


def test_a_file_of_one_sentence_says_how_to_make_two(look: Looker):
    page = opened(look, traced(), "#page=compare")
    assert "nothing to compare with" in at(page, "compare-none").inner_text()
    assert "--beside" in at(page, "compare-none").inner_text()
    page = opened(look, traced(), "#page=compare&a=7.9&b=x")
    assert "no sentence" in at(page, "compare-none").inner_text()
    assert look.problems == []


def test_without_maps_the_pieces_are_compared_all_the_same(look: Looker):
    payload = copy.deepcopy(compared())
    payload["others"][0]["traces"][0]["tensors"] = {}
    payload["others"][0]["traces"][0]["left_out"] = "all tensors: they are too many"
    page = opened(look, payload, "#page=compare&a=0.0&b=1.0")
    assert "they are too many" in at(page, "compare-no-maps").inner_text()
    assert numbers(page, 1, "p")
    assert look.problems == []


def test_with_a_server_one_word_is_changed(look: Looker):
    with serving() as client:
        page = look.at(f"http://{client.host}/#page=compare", offline=False)
        at(page, "compare-text-a").fill(SOURCE)
        at(page, "compare-ask-a").click()
        at(page, "compare-pieces-a").wait_for()
        assert at(page, "compare-text-b").input_value() == SOURCE
        at(page, "compare-text-b").fill(OTHER)
        page.keyboard.press("Enter")
        at(page, "compare-rows").wait_for()
        expected = trace(translator(), OTHER).output.log_probs
        assert numbers(page, 1, "log-prob") == pytest.approx(expected, abs=1e-5)
        assert "b=%3DThe+animal" in page.url
        at(page, "compare-text-b").fill("   ")
        page.keyboard.press("Enter")  # nothing is asked
        at(page, "page-river").click()
        at(page, "page-compare").click()
        expect(at(page, "compare-rows")).to_be_visible()
        # The address asks again.
        again = look.at(page.url, offline=False)
        at(again, "compare-rows").wait_for()
        at(again, "compare-preset-it").click()
        at(again, "compare-rows").wait_for()
        expect(at(again, "compare-parting")).to_be_visible()
    at(again, "compare-text-b").fill("Another sentence.")
    again.keyboard.press("Enter")
    again.get_by_role("alert").wait_for()
    assert "does not answer" in again.get_by_role("alert").inner_text()


def test_with_the_model_inside_one_word_is_changed_offline(look: Looker):
    payload = alive(compared())
    page = opened(look, payload, "#page=compare&a=0.0&b=1.0")
    expect(at(page, "compare-difference")).to_be_visible()  # the maps of A are computed here
    at(page, "compare-text-b").fill(OTHER)
    at(page, "compare-ask-b").click()
    page.locator('[data-testid="compare-b"]', has_text="wide").wait_for()
    page.wait_for_timeout(500)
    expected = trace(translator(), OTHER).output.log_probs
    assert numbers(page, 1, "log-prob") == pytest.approx(expected, abs=1e-4)
    at(page, "compare-preset-it").click()
    assert at(page, "compare-sentence-b").input_value() == "1"
    assert len(look.requests) == 1
    assert look.problems == []


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("fragment", ["#page=compare&a=0.0&b=1.0", f"#open={BLOCK}&tab=matters"])
def test_nothing_is_cut_off_and_all_has_a_name(look: Looker, width: int, fragment: str):
    payload = copy.deepcopy(compared())
    payload["traces"][0]["attribution"] = traced(answers=True)["traces"][0]["attribution"]
    page = opened(look, payload, fragment, width=width)
    wide = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert wide[0] <= wide[1]
    unnamed = page.evaluate(
        """() => [...document.querySelectorAll("main select, main input, main button")]
            .filter((e) => !(e.labels?.length || e.ariaLabel || e.innerText.trim()))
            .map((e) => e.outerHTML)"""
    )
    assert unnamed == []
    panel = '[data-testid="compare"]' if "compare" in fragment else '[data-testid="matters"]'
    regions = page.locator(f"{panel} .scroll").all()
    assert regions
    for region in regions:
        assert region.get_attribute("tabindex") == "0"
        assert region.get_attribute("aria-label")
    assert json.dumps(look.problems) == "[]"
