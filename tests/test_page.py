"""The page in a real browser: alone from a file, from a server, in a notebook's frame."""

import base64
import copy
from collections.abc import Callable
from importlib.resources import files
from typing import Any

import numpy as np
import pytest
import torch
from looker import Looker
from pages import SOURCE, long, serving, traced
from playwright.sync_api import expect

from transduce.trace.page import mimebundle

BLOCK = "decoder.1.cross_attention"
TABS = ("equation", "heads", "patterns", "masks")
STATIONS = ["", *(f"#open={BLOCK}&tab={tab}&target=3&source=2" for tab in TABS), "#open=next_word"]


def at(page: Any, testid: str) -> Any:
    return page.get_by_test_id(testid)


def badges(page: Any, prefix: str = "") -> dict[str, str]:
    """What each badge says: false where one of several of a name does."""
    found: dict[str, str] = {}
    for badge in page.locator(f'[data-testid^="badge-{prefix}"]').all():
        name, ok = badge.get_attribute("data-testid"), badge.get_attribute("data-ok")
        found[name] = "false" if "false" in (ok, found.get(name)) else "true"
    return found


# ---- alone


def test_it_is_one_file_that_asks_for_nothing_and_complains_of_nothing(look: Looker):
    page = look.open(traced())
    assert at(page, "pair").inner_text().startswith(SOURCE)
    for fragment in STATIONS:
        page.evaluate("where => { location.hash = where; }", fragment)
        page.wait_for_timeout(50)
    assert len(look.requests) == 1
    assert look.problems == []


def test_the_same_with_several_sentences_and_with_none(look: Looker):
    two = copy.deepcopy(traced())
    two["traces"] += traced("It was too wide.", "Elle était trop large.")["traces"]
    page = look.open(two)
    at(page, "sentence-1").click()
    assert "trop large" in at(page, "pair").inner_text()
    blank = look.open(traced("", None))
    expect(at(blank, "blank")).to_be_visible()
    assert look.problems == []


@pytest.mark.parametrize(
    "document", [{}, {"traces": []}, {"model": {}, "traces": [{"source": {"text": "a"}}]}]
)
def test_a_document_of_another_kind_is_told(look: Looker, document: Any):
    assert "are not those that this page draws" in look.open(document).locator("body").inner_text()


def test_a_healthy_trace_has_green_badges_only(look: Looker):
    page = look.open(traced())
    told = badges(page)
    for one in traced()["traces"][0]["invariants"]:
        assert told[f"badge-{one['id']}"] == "true"
    assert set(told.values()) == {"true"}
    assert at(page, "checks").get_attribute("data-ok") == "true"
    at(page, "checks").click()
    expect(at(page, "check-rows_sum_1")).to_be_visible()


def test_every_map_of_every_head_holds(look: Looker):
    page = look.open(traced())
    one = traced()["traces"][0]
    blocks = [name.removesuffix(".weights") for name in one["tensors"] if name.endswith(".weights")]
    assert len(blocks) == 6
    for block in blocks:
        for head in ["0", "1", "2", "3", "mean"]:
            page.evaluate(
                "where => { location.hash = where; }", f"#open={block}&tab=patterns&head={head}"
            )
            page.get_by_test_id(f"matrix-{block}-{head}").first.wait_for()
            assert set(badges(page).values()) == {"true"}
    assert look.problems == []


# ---- pictures that would lie


def array(tensor: Any) -> np.ndarray:
    return np.frombuffer(base64.b64decode(tensor["f32"]), "<f4").reshape(tensor["shape"]).copy()


def packed(numbers: np.ndarray) -> Any:
    data = np.ascontiguousarray(numbers, "<f4").tobytes()
    return {"shape": list(numbers.shape), "f32": base64.b64encode(data).decode()}


def change(trace: Any, name: str, how: Callable[[np.ndarray], np.ndarray]) -> None:
    trace["tensors"][name] = packed(how(array(trace["tensors"][name])))


def transposed(trace: Any) -> None:
    change(trace, f"{BLOCK}.weights", lambda w: w.transpose(0, 2, 1))


def target_on_source_axis(trace: Any) -> None:
    trace["source"]["tokens"] = trace["target"]["labels"][: len(trace["source"]["tokens"])]


def not_normalised(trace: Any) -> None:
    change(trace, f"{BLOCK}.weights", lambda w: w * 1.01)


def leaked_future(trace: Any) -> None:
    def leak(weights: np.ndarray) -> np.ndarray:
        weights[1, 2, 2] -= 1e-3
        weights[1, 2, 3] += 1e-3
        return weights

    change(trace, "decoder.0.self_attention.weights", leak)


def padding_read(trace: Any) -> None:
    for name, tensor in trace["padded"]["weights"].items():
        weights = array(tensor)
        weights[0, 0, 0] -= 1e-3
        weights[0, 0, -1] += 1e-3
        trace["padded"]["weights"][name] = packed(weights)
        return


def words_changed(trace: Any) -> None:
    first, second = trace["source"]["tokens"][1:3]
    first["piece"], second["piece"] = second["piece"], first["piece"]


def probability_of_another(trace: Any) -> None:
    first, second = trace["output"]["top"][2][3:5]
    first["id"], second["id"] = second["id"], first["id"]


def total_that_is_none(trace: Any) -> None:
    trace["output"]["log_prob"] -= 0.5


def entropy_of_another(trace: Any) -> None:
    trace["output"]["entropy"][2] += 0.1


def rank_of_another(trace: Any) -> None:
    trace["output"]["rank"][2] += 100


def residual_that_is_no_sum(trace: Any) -> None:
    change(trace, "encoder.0.self_attention_residual.sum", lambda x: x + 0.1)


def edge_that_does_not_add_up(trace: Any) -> None:
    trace["searches"]["beam"]["nodes"][9]["log_prob"] -= 0.5


def score_that_is_no_quotient(trace: Any) -> None:
    trace["searches"]["beam"]["hypotheses"][0]["score"] -= 0.1


def tokens_of_another_path(trace: Any) -> None:
    first, second, *_ = trace["searches"]["beam"]["hypotheses"]
    first["tokens"] = second["tokens"]


def green_beyond_its_tolerance(trace: Any) -> None:
    (one,) = (one for one in trace["invariants"] if one["id"] == "pad_zero")
    one["worst"] = 0.1


SQUARE = "L'animal n'a pas traversé la rue trop large"
"""A target as long as SOURCE, so that no shape tells a map from its transpose."""


@pytest.mark.parametrize(
    ("break_it", "badge"),
    [
        (transposed, "axes"),
        (target_on_source_axis, "axes"),
        (not_normalised, "rows_sum_1"),
        (leaked_future, "causal_zero"),
        (padding_read, "pad_zero"),
        (words_changed, "axes"),
        (probability_of_another, "axes"),
        (total_that_is_none, "axes"),
        (entropy_of_another, "axes"),
        (rank_of_another, "axes"),
        (residual_that_is_no_sum, "replay"),
        (edge_that_does_not_add_up, "search_equals_forced"),
        (score_that_is_no_quotient, "search_equals_forced"),
        (tokens_of_another_path, "search_equals_forced"),
        (green_beyond_its_tolerance, "pad_zero"),
    ],
)
def test_a_broken_document_is_red(look: Looker, break_it: Callable[[Any], None], badge: str):
    document = copy.deepcopy(traced())
    break_it(document["traces"][0])
    page = look.open(document)
    assert badges(page, badge) == {f"badge-{badge}": "false"}
    assert at(page, "checks").get_attribute("data-ok") == "false"


@pytest.mark.parametrize("break_it", [transposed, target_on_source_axis])
def test_a_square_map_is_not_drawn_in_silence_either(look: Looker, break_it: Callable[[Any], None]):
    document = copy.deepcopy(traced(SOURCE, SQUARE))
    one = document["traces"][0]
    assert len(one["source"]["tokens"]) == len(one["target"]["input"])
    page = look.open(document)
    assert at(page, "checks").get_attribute("data-ok") == "true"
    break_it(one)
    page = look.open(document, f"#open={BLOCK}&tab=patterns")
    assert at(page, "checks").get_attribute("data-ok") == "false"


# ---- the guide's numbers (claims 1 to 26)

ROOT2 = 2**0.5


def attended(scores: list[float], blocked: tuple[int, ...] = ()) -> tuple[list[float], list[float]]:
    """Weights and output for the guide's values, in float64."""
    z = torch.tensor(scores, dtype=torch.float64)
    z[list(blocked)] = -torch.inf
    weights = z.softmax(0)
    values = torch.tensor([[2.0, 0], [0, 2], [2, 2]], dtype=torch.float64)
    return weights.tolist(), (weights @ values).tolist()


GUIDE = [1 / ROOT2, 0.0, 1 / ROOT2]
# Preset, key (from 1), by, and claims: weights and output as printed in the list of claims.
CLAIMS = [
    ("guide", 3, 1, [0.401112, 0.197776, 0.401112], [1.604448, 1.197776]),
    ("no-scale", 3, 1, [0.422319, 0.155362, 0.422319], [1.689275, 1.155362]),
    ("equal", 3, 1, [1 / 3, 1 / 3, 1 / 3], [1.333333, 1.333333]),
    ("raise-equal", 1, 1, [0.576117, 0.211942, 0.211942], [1.576117, 0.847766]),
    ("raise-equal", 2, 1, [0.211942, 0.576117, 0.211942], [0.847766, 1.576117]),
    ("raise-equal", 3, 1, [0.211942, 0.211942, 0.576117], [1.576117, 1.576117]),
    ("raise-equal", 3, 0.5, [None, None, 0.451863], [1.451863, 1.451863]),
    ("raise-equal", 3, 2, [None, None, 0.786986], [1.786986, 1.786986]),
    ("raise-equal", 3, 5, [None, None, 0.986703], [1.986703, 1.986703]),
    ("raise-guide", 3, 1, [0.237454, 0.117081, 0.645466], [1.765838, 1.525093]),
    ("raise-guide", 2, 1, [0.299374, 0.401251, 0.299374], [1.197497, 1.401251]),
    ("block", 3, 1, [0.669762, 0.330238, 0.0], [1.339523, 0.660477]),
    ("block", 1, 1, [0.0, 0.330238, 0.669762], [1.339523, 2.0]),
    ("block", 2, 1, [0.5, 0.0, 0.5], [2.0, 1.0]),
    ("block-equal", 3, 1, [0.5, 0.5, 0.0], [1.0, 1.0]),
    ("wrong-a", 3, 1, [0.503490, 0.248255, 0.248255], None),
    ("wrong-b", 3, 1, None, [0.802224, 0.395552]),
    ("add-1000", 3, 1, [0.401112, 0.197776, 0.401112], [1.604448, 1.197776]),
    ("level", 2, 1, [1 / 3, 1 / 3, 1 / 3], None),
]


def numbers(page: Any, name: str) -> list[float]:
    """The numbers that a person reads at name-1, name-2 ...: never more exact than they see."""
    found = []
    for element in page.locator(f'[data-testid^="eq-{name}-"]').all():
        text = element.evaluate("e => e.value ?? e.innerText")
        found.append(float(text.replace("−", "-")) if text else float("nan"))
    return found


def test_the_guides_numbers(look: Looker):
    page = look.open(traced(), STATIONS[1])
    at(page, "eq-source-guide").click()
    for preset, key, by, weights, output in CLAIMS:
        at(page, "choose-key").select_option(index=key - 1)
        at(page, "choose-by").select_option(label=f"+{by}")
        at(page, f"preset-{preset}").click()
        case = (preset, key, by)
        for name, expected in (("weight", weights), ("output", output)):
            for shown, wanted in zip(numbers(page, name), expected or (), strict=bool(expected)):
                if wanted is not None:
                    assert shown == pytest.approx(wanted, abs=2e-6), case
                if wanted == 0:
                    assert shown == 0, case
        assert at(page, "badge-eq-sum").get_attribute("data-ok") == str(preset != "wrong-b").lower()
    assert look.problems == []


def test_the_guides_steps_and_its_derivatives(look: Looker):
    page = look.open(traced(), STATIONS[1])
    assert numbers(page, "raw") == [1, 0, 1]  # claim 1
    assert at(page, "eq-root").inner_text() == "1.414214"  # 2
    assert numbers(page, "scaled") == pytest.approx(GUIDE, abs=1e-6)
    assert numbers(page, "exp") == pytest.approx([2.028115, 1, 2.028115], abs=1e-6)  # 3
    assert float(at(page, "eq-denominator").inner_text()) == pytest.approx(5.056230, abs=1e-6)
    assert float(at(page, "eq-sum").inner_text()) == 1  # 4
    assert float(at(page, "eq-ratio").inner_text()) == pytest.approx(2.028115, abs=1e-6)  # 20
    told = numbers(page, "jacobian")  # 26
    z = torch.tensor(GUIDE, dtype=torch.float64)
    values = torch.tensor([[2.0, 0], [0, 2], [2, 2]], dtype=torch.float64)
    expected = torch.autograd.functional.jacobian(lambda s: s.softmax(0) @ values, z).T
    assert torch.tensor(told, dtype=torch.float64).reshape(3, 2).numpy() == pytest.approx(
        expected.numpy(), abs=1e-6
    )
    at(page, "choose-key").select_option(index=2)
    at(page, "preset-block").click()
    assert float(at(page, "eq-ratio").inner_text()) == pytest.approx(2.028115, abs=1e-6)
    at(page, "preset-wrong-b").click()  # 22
    assert float(at(page, "eq-sum").inner_text()) == pytest.approx(0.598888, abs=1e-6)
    repaired = at(page, "eq-repaired").inner_text()
    for wanted in ("0.669762", "0.330238", "1.339523", "0.660477"):
        assert wanted in repaired


def test_all_keys_blocked_is_no_distribution(look: Looker):
    """Claim 25: the page says so, and shows no NaN."""
    page = look.open(traced(), STATIONS[1])
    at(page, "preset-block-all").click()
    assert "No distribution exists" in at(page, "eq-message").inner_text()
    assert "NaN" not in page.locator("body").inner_text()


def test_changed_by_hand_it_is_what_torch_computes(look: Looker):
    page = look.open(traced(), STATIONS[1])
    for id_, value in (("eq-q-1", "0.3"), ("eq-k-2-1", "-1.25"), ("eq-v-3-2", "7")):
        at(page, id_).fill(value)
    q = torch.tensor([[0.3, 0]], dtype=torch.float64)
    k = torch.tensor([[1, 0], [-1.25, 1], [1, 1]], dtype=torch.float64)
    v = torch.tensor([[2, 0], [0, 2], [2, 7]], dtype=torch.float64)
    output = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    assert numbers(page, "output") == pytest.approx(output[0].tolist(), abs=1e-6)
    at(page, "eq-q-1").press("ArrowUp")
    assert at(page, "eq-q-1").input_value() == "0.4"


@pytest.mark.parametrize("block", ["encoder.0.self_attention", "decoder.1.self_attention", BLOCK])
def test_a_tokens_own_numbers_are_the_models(look: Looker, block: str):
    page = look.open(traced(), f"#open={block}&tab=equation&target=2&source=5&head=3")
    at(page, "eq-source-token").click()
    assert at(page, "badge-eq-model").get_attribute("data-ok") == "true"
    weights = array(traced()["traces"][0]["tensors"][f"{block}.weights"])
    row = weights[3, 5 if block.startswith("encoder") else 2]
    told = [
        float(element.get_attribute("data-value"))
        for element in page.locator('[data-testid^="eq-weight-"]').all()
    ]
    assert told == pytest.approx(row.tolist(), abs=1e-5)


# ---- masks


def test_four_snippets_make_the_mask_that_is_drawn(look: Looker):
    page = look.open(traced(), STATIONS[4])
    at(page, "mask-cell-2-0").click()  # one by hand, under the causal ones
    at(page, "mask-pads").select_option("1")
    torch.manual_seed(1)
    scores, v = torch.randn(4, 4), torch.randn(4, 3)
    allowed = torch.ones(4, 4).tril().bool()
    allowed[2, 0] = False
    allowed[:, 3] = False
    expected = scores.masked_fill(~allowed, -torch.inf).softmax(-1)
    for convention in ("ours", "sdpa", "mha", "additive"):
        names: dict[str, Any] = {"scores": scores, "v": v}
        exec(at(page, f"mask-code-{convention}").inner_text(), names)
        torch.testing.assert_close(names["weights"], expected, atol=1e-6, rtol=0)
        torch.testing.assert_close(names["output"], expected @ v, atol=1e-6, rtol=0)


# ---- the next word


def test_the_next_word_shows_pythons_probabilities(look: Looker):
    page = look.open(traced(), "#open=next_word&target=4")
    top = traced()["traces"][0]["output"]["top"][4]
    for rank in (1, 2, 3):
        told = float(at(page, f"nw-top-{rank}").first.get_attribute("data-p"))
        assert told == pytest.approx(top[rank - 1]["p"], abs=1e-6)
    assert "false" not in badges(page).values()


def test_another_word_is_answered_from_the_file(look: Looker):
    page = look.open(traced(answers=True), "#open=next_word&target=4")
    one = traced(answers=True)["traces"][0]
    at(page, "nw-force-2").click()
    skip = at(page, "nw-predict-skip")  # it may ask for a guess first
    if skip.count():
        skip.click()
    forced = one["output"]["top"][4][1]["id"]
    (answer,) = [
        each
        for each in one["continuations"]
        if each["position"] == 4 and each["token"]["id"] == forced
    ]
    shown = at(page, "nw-compare").inner_text()
    for token in answer["tokens"][:8]:
        assert token["piece"].strip("▁") in shown
    assert look.problems == []


# ---- for everybody


def violations(page: Any, within: str = "html", only: list[str] | None = None) -> list[str]:
    """What axe finds in a part of the page: by all its rules, or by these only."""
    if not page.evaluate("'axe' in window"):
        script = files("axe_playwright_python") / "axe.min.js"
        page.evaluate(script.read_text(encoding="utf-8"))
    options: dict[str, Any] = {"resultTypes": ["violations"]}
    if only:
        options["runOnly"] = only
    found = page.evaluate("what => axe.run(...what)", [within, options])["violations"]
    return [
        f"{one['id']}: {node['html'][:200]} {node['failureSummary']}"
        for one in found
        for node in one["nodes"]
    ]


def focused(page: Any, attribute: str) -> str | None:
    return page.evaluate("name => document.activeElement?.getAttribute(name)", attribute)


def tab_to(page: Any, testid: str, *, most: int = 120) -> None:
    """Press Tab until the focus is there; what is inside a composite is for the arrows."""
    for _ in range(most):
        page.keyboard.press("Tab")
        if focused(page, "data-testid") == testid:
            return
    raise AssertionError(f"{most} times Tab, and not at {testid}")


def test_with_the_keyboard_alone_one_reaches_every_station(look: Looker):
    page = look.open(traced())
    tab_to(page, "checks")
    page.keyboard.press("Enter")
    expect(at(page, "check-rows_sum_1")).to_be_visible()
    page.keyboard.press("Enter")
    before = at(page, "now").inner_text()
    for _ in range(20):  # into the target's rail, which is one stop
        page.keyboard.press("Tab")
        if (focused(page, "data-testid") or "").startswith("target-"):
            break
    page.keyboard.press("ArrowRight")
    assert at(page, "now").inner_text() != before
    tab_to(page, f"open-{BLOCK}")
    page.keyboard.press("Enter")
    expect(at(page, "attention-station")).to_be_visible()
    for _ in range(10):
        page.keyboard.press("Tab")
        if (focused(page, "data-testid") or "").startswith("tab-"):
            break
    seen = []
    for _ in TABS:
        seen.append(focused(page, "data-testid"))
        expect(page.locator("[role=tabpanel]")).to_be_visible()
        page.keyboard.press("ArrowRight")
    assert sorted(seen) == sorted(f"tab-{tab}" for tab in TABS)
    page.keyboard.press("Escape")
    assert at(page, "attention-station").count() == 0
    assert focused(page, "data-testid") == f"open-{BLOCK}"
    tab_to(page, "open-next_word")
    page.keyboard.press("Enter")
    expect(at(page, "nw-top-1").first).to_be_visible()
    assert look.problems == []


def test_the_focus_is_always_seen(look: Looker):
    page = look.open(traced(), STATIONS[1])
    bare = page.evaluate(
        """() => [...document.querySelectorAll("button, input, select, a[href], [tabindex='0']")]
        .filter((e) => e.checkVisibility()).filter((e) => {
          e.focus({ focusVisible: true });
          const style = getComputedStyle(e);
          return document.activeElement === e && style.outlineStyle === "none"
            && style.boxShadow === "none";
        }).map((e) => e.outerHTML.slice(0, 200))"""
    )
    assert bare == []


def fits(page: Any) -> bool:
    return page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize("fragment", STATIONS)
def test_a_phone_does_not_scroll_sideways(look: Looker, fragment: str):
    page = look.open(traced(), fragment, width=390)
    assert fits(page)
    for button in page.locator('[data-testid^="closer-"]').all():
        button.click()
    assert fits(page)


@pytest.mark.parametrize("width", [320, 768, 1440, 3840])
def test_other_widths_do_not_either(look: Looker, width: int):
    assert fits(look.open(traced(), STATIONS[3], width=width))


@pytest.mark.parametrize("width", [390, 1280])
def test_long_sentences_fit_and_are_painted(look: Looker, width: int):
    page = look.open(long(), STATIONS[3], width=width)
    assert fits(page)
    figure = at(page, f"matrix-{BLOCK}-0").first
    canvas = figure.locator("canvas").first
    drawn = canvas.evaluate(
        """(canvas) => new Set(
          new Uint32Array(canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height)
            .data.buffer)).size"""
    )
    assert drawn > 20  # shades
    figure.locator("[role=grid]").focus()
    page.keyboard.press("End")
    weights = array(long()["traces"][0]["tensors"][f"{BLOCK}.weights"])
    assert f"{weights[0, 3, -1]:.4f}" in figure.get_by_test_id("matrix-sentence").inner_text()
    assert set(badges(page).values()) == {"true"}
    assert look.problems == []


def test_words_of_any_script_are_shown_as_they_are(look: Looker):
    document = copy.deepcopy(traced())
    pieces = ["▁السلام", "猫が好き", "<0xE4>", "▁Donaudampfschif", "🇳🇬", "<b>no</b>"]
    for side in (
        document["traces"][0]["source"]["tokens"],
        document["traces"][0]["target"]["input"],
    ):
        for token, piece in zip(side[1:], pieces, strict=False):
            token["piece"] = piece
    page = look.open(document, STATIONS[3], width=390)
    assert fits(page)
    rail = at(page, "source-rail").inner_text()
    for piece in ("猫が好き", "<0xE4>", "Donaudampfschif", "<b>no</b>"):
        assert piece in rail
    assert page.locator("b", has_text="no").count() == 0


def test_reduced_motion_moves_nothing(look: Looker):
    page = look.open(traced(), reduced_motion="reduce")
    at(page, f"open-{BLOCK}").click()
    at(page, "target-3").click()
    assert page.evaluate("document.getAnimations().length") == 0


def test_with_the_colours_of_the_system_what_is_chosen_is_seen(look: Looker):
    page = look.open(traced(), forced_colors="active")
    chosen, other = at(page, "target-3"), at(page, "target-2")
    chosen.click()
    looks = [
        e.evaluate(
            "e => { const s = getComputedStyle(e); return [s.outline, s.border, s.background]; }"
        )
        for e in (chosen, other)
    ]
    assert looks[0] != looks[1]
    assert look.problems == []


def test_a_view_has_an_address(look: Looker):
    page = look.open(traced())
    at(page, "target-3").click()
    at(page, f"open-{BLOCK}").click()
    at(page, "tab-masks").click()
    address = page.evaluate("location.hash")
    again = look.open(traced(), address)
    assert at(again, "tab-masks").get_attribute("aria-selected") == "true"
    assert at(again, "now").inner_text() == at(page, "now").inner_text()


@pytest.mark.parametrize(
    "fragment",
    [
        "#open=nothing&tab=x&head=99",
        "#target=-5&source=1e9&sentence=77",
        "#open=next_word&target=-1&sentence=-1",
        f"#open={BLOCK}&tab=heads&head=-1",
        "#open=" + "%" * 9,
    ],
)
def test_a_wrong_address_does_no_harm(look: Looker, fragment: str):
    page = look.open(traced(), fragment)
    expect(at(page, "pair")).to_be_visible()
    assert at(page, "undrawn").count() == 0
    assert "undefined" not in page.locator("body").inner_text()
    assert look.problems == []


# ---- from a server, in a notebook, from elsewhere


def test_a_server_translates_what_is_typed(look: Looker):
    with serving() as client:
        page = look.at(f"http://{client.host}/", offline=False)
        at(page, "text").fill(SOURCE)
        at(page, "translate").click()
        rail = at(page, "source-rail")
        rail.wait_for()
        pieces = [token["piece"] for token in traced()["traces"][0]["source"]["tokens"]]
        assert rail.inner_text().split() == [word for piece in pieces for word in piece.split()]
        assert set(badges(page).values()) == {"true"}
        page.locator("summary", has_text="yourself").click()
        at(page, "given").fill("mot " * 200)
        at(page, "translate").click()
        at(page, "problem").wait_for()
        assert "target" in at(page, "problem").inner_text()
        assert {url.split("/")[2] for url in look.requests} == {client.host}
        assert len(look.requests) == 4  # the page, the model, and two traces
    assert [one for one in look.problems if "422" not in one] == []


def test_a_server_that_is_gone_is_told(look: Looker):
    with serving() as client:
        page = look.at(f"http://{client.host}/", offline=False)
    at(page, "text").fill(SOURCE)
    at(page, "translate").click()
    assert "does not answer" in at(page, "problem").inner_text()


def test_another_words_answer_comes_from_the_server(look: Looker):
    with serving() as client:
        page = look.at(f"http://{client.host}/", offline=False)
        at(page, "text").fill(SOURCE)
        at(page, "translate").click()
        at(page, "target-3").click()
        at(page, "open-next_word").click()
        forced = page.locator('[data-testid^="nw-force-"][aria-disabled="false"]').first
        piece = forced.get_attribute("aria-label").split()[1]
        forced.click()
        at(page, "nw-prefix").wait_for()
        assert piece in at(page, "nw-prefix").inner_text()


ASK = """async ([address, headers]) => {
  const options = { method: "POST", headers, body: '{"text": "a"}' };
  return await fetch(address, options).then((answer) => answer.status, () => "refused");
}"""


def test_the_page_of_another_origin_cannot_drive_it(look: Looker):
    with serving() as client:
        stranger = look.at("about:blank", offline=False)
        for headers in ({"Content-Type": "application/json"}, {"Content-Type": "text/plain"}, {}):
            address = f"http://{client.host}/api/trace"
            assert stranger.evaluate(ASK, [address, headers]) == "refused"
        stranger.set_content(f'<iframe src="http://{client.host}/"></iframe>')
        stranger.wait_for_timeout(500)
        assert "Inside a translation" not in stranger.frames[1].content()


def test_a_notebook_shows_the_page_in_its_frame(look: Looker):
    page = look.at("about:blank")
    page.set_content(f"<!doctype html><title>A notebook</title>{mimebundle(traced())['text/html']}")
    frame = page.frame_locator("iframe")
    frame.get_by_test_id("pair").wait_for()
    frame.get_by_test_id(f"open-{BLOCK}").click()
    frame.get_by_test_id("tab-heads").click()
    frame.get_by_test_id("theme").click()
    assert look.problems == []
    assert page.evaluate("document.querySelector('iframe').contentDocument") is None
