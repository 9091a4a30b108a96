"""What a reader changes in a page that holds the model, offline: each answer is PyTorch's own."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import pytest
import torch
from alive import alive, random_model
from looker import Looker
from playwright.sync_api import expect
from test_page import at, badges, violations

from transduce.bundle import Bundle
from transduce.decode.translator import Translator
from transduce.ids import BOS, EOS
from transduce.trace.record import heads_off
from transduce.trace.trace import trace
from transduce.trace.weights import rounded

TEXT, OTHER = "the cat saw the dog", "the dog did not see it"
CROSS, SELF = "decoder.1.cross_attention", "decoder.0.self_attention"


@cache
def small() -> Bundle:
    return random_model(3, ends=3.0)


@cache
def in_file() -> Any:
    return alive(small(), TEXT, OTHER, precision="float16")


@cache
def half() -> Bundle:
    """What PyTorch runs: the same rounded numbers."""
    return rounded(small())


def recorded(text: str, target: str | None = None) -> Any:
    return trace(Translator(half(), names=["small"]), text, target).to_json()["traces"][0]


@contextmanager
def blocked(block: str, cells: list[tuple[int, int]], head: int | None) -> Iterator[None]:
    """The module's own mask, less these pairs of query and key."""
    heads = half().model.config.heads

    def less(module: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
        x, memory, mask = args
        mask = mask.expand(len(x), heads, x.shape[1], memory.shape[1]).clone()
        for query, key in cells:
            if query < mask.shape[2] and key < mask.shape[3]:
                mask[:, slice(None) if head is None else head, query, key] = False
        return x, memory, mask

    hook = half().model.get_submodule(block).register_forward_pre_hook(less)
    try:
        yield
    finally:
        hook.remove()


@torch.no_grad()
def log_probs(text: str, labels: list[int]) -> list[float]:
    source = torch.tensor([[*half().source_tokenizer.encode(text), EOS]])
    logits = half().model(source, torch.tensor([[BOS, *labels[:-1]]]))[0]
    return logits.log_softmax(-1)[range(len(labels)), labels].tolist()


@torch.no_grad()
def greedily(text: str, limit: int) -> list[int]:
    """Whole passes, a token at a time: no cache, no search."""
    source = torch.tensor([[*half().source_tokenizer.encode(text), EOS]])
    found: list[int] = []
    while not found or (found[-1] != EOS and len(found) < limit - 1):
        logits = half().model(source, torch.tensor([[BOS, *found]]))[0, -1]
        logits[[0, 1, 3]] = -torch.inf
        found.append(int(logits.argmax()))
    return [each for each in found if each != EOS]


def labels_of(one: Any) -> list[int]:
    return [token["id"] for token in one["target"]["labels"]]


def shown(page: Any) -> float:
    """The change of the traced target's log-probability that the page prints."""
    return float(at(page, "mask-effect-delta").inner_text().replace("−", "-"))


def idle(page: Any) -> None:
    page.locator('form[aria-busy="false"]').wait_for()


def masks_of(look: Looker, block: str, **options: Any) -> Any:
    page = look.open(in_file(), f"#open={block}&tab=masks&target=1&source=1", **options)
    at(page, "mask-sentence").click()
    return page


def test_another_sentence_is_typed_and_nobody_is_asked(look: Looker):
    page = look.open(in_file())
    assert at(page, "translate").bounding_box()["height"] < 50  # its word on one line
    assert "rounded to float16" in at(page, "inside").inner_text()
    text = "un chien did see 😀"
    at(page, "text").fill(text)
    page.keyboard.press("Enter")
    wanted = recorded(text)
    page.get_by_text(wanted["target"]["text"]).first.wait_for()
    assert at(page, "pair").inner_text().split("\n")[-1].endswith(wanted["target"]["text"].strip())
    here = page.evaluate("text => transduce.trace({ text })", text)["traces"][0]
    assert here["output"]["log_probs"] == pytest.approx(wanted["output"]["log_probs"], abs=1e-4)
    assert labels_of(here) == labels_of(wanted)
    assert set(badges(page).values()) == {"true"}
    at(page, "sentence-1").click()
    assert at(page, "text").input_value() == OTHER
    assert at(page, "sentence-1").get_attribute("aria-pressed") == "true"
    assert len(look.requests) == 1
    assert look.problems == []


def test_a_translation_of_ones_own_is_scored(look: Looker):
    page = look.open(in_file())
    page.get_by_text("Give the translation yourself").click()
    at(page, "given").fill("le chien")
    page.keyboard.press("Enter")
    page.get_by_text("was given this translation").wait_for()
    here = page.evaluate("one => transduce.trace(one)", {"text": TEXT, "target": "le chien"})
    wanted = recorded(TEXT, "le chien")["output"]["log_probs"]
    assert here["traces"][0]["output"]["log_probs"] == pytest.approx(wanted, abs=1e-4)


@pytest.mark.parametrize("head", [None, 1])
def test_painted_cells_are_minus_infinity_in_the_model(look: Looker, head: int | None):
    before = in_file()["traces"][0]
    page = masks_of(look, CROSS)
    if head is not None:
        page.evaluate("where => { location.hash = where; }", f"#open={CROSS}&tab=masks&head={head}")
        at(page, "mask-where").select_option("one")
    at(page, "mask-use").click()
    cells = [(0, 0), (1, 2), (2, 1)]
    for query, key in cells:
        at(page, f"mask-cell-{query}-{key}").click()
    at(page, "changed").wait_for()
    idle(page)
    with blocked(CROSS, cells, head):
        forced = log_probs(TEXT, labels_of(before))
        own = half().target_tokenizer.decode(greedily(TEXT, half().model.config.max_length))
    assert shown(page) == pytest.approx(sum(forced) - sum(before["output"]["log_probs"]), abs=2e-4)
    assert at(page, "mask-effect-translation").get_attribute("data-text") == own
    assert f"3 pairs blocked in {CROSS}" in at(page, "changed").inner_text()
    bars = page.get_by_test_id("head-off-bars").locator("li").all()
    deltas = [float(bar.get_attribute("data-delta")) for bar in bars]
    wanted = [a - b for a, b in zip(forced, before["output"]["log_probs"], strict=True)]
    assert deltas == pytest.approx(wanted, abs=1e-4)
    assert set(badges(page).values()) == {"true"}
    at(page, "undo").click()
    expect(at(page, "changed")).not_to_be_visible()
    assert at(page, "mask-use").get_attribute("aria-pressed") == "false"
    assert look.problems == []


def test_without_the_causal_mask_the_given_pieces_are_foreseen(look: Looker):
    before = in_file()["traces"][0]
    page = masks_of(look, SELF)
    at(page, "mask-toggle-causal").uncheck()
    at(page, "mask-use").click()
    at(page, "mask-later").wait_for()
    length = len(labels_of(before))

    def everything(module: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return args[0], args[1], torch.ones(1, 1, length, length, dtype=torch.bool)

    blocks = [layer.self_attention for layer in half().model.decoder]
    hooks = [block.register_forward_pre_hook(everything) for block in blocks]
    try:
        forced = log_probs(TEXT, labels_of(before))
    finally:
        for hook in hooks:
            hook.remove()
    assert shown(page) == pytest.approx(sum(forced) - sum(before["output"]["log_probs"]), abs=2e-4)
    assert "the causal mask is off" in at(page, "changed").inner_text()
    assert at(page, "mask-effect-summary").inner_text().startswith("The same words.")


def test_a_query_without_a_key_is_told_and_not_run(look: Looker):
    page = masks_of(look, CROSS)
    at(page, "mask-use").click()
    at(page, "mask-query-1").click()
    assert "no distribution" in at(page, "mask-why").inner_text()
    expect(at(page, "mask-no-key")).to_be_visible()
    expect(at(page, "changed")).not_to_be_visible()
    at(page, "mask-cell-1-0").click()
    at(page, "changed").wait_for()
    assert look.problems == []


def test_a_head_is_off_as_in_pytorch(look: Looker):
    before = in_file()["traces"][0]
    page = look.open(in_file(), f"#open={CROSS}&tab=heads")
    at(page, f"head-off-{CROSS}-1").click()
    at(page, "changed").wait_for()
    with heads_off(half().model, [(CROSS, 1)]):
        forced = log_probs(TEXT, labels_of(before))
        own = half().target_tokenizer.decode(greedily(TEXT, half().model.config.max_length))
    told = float(at(page, "head-off-delta").inner_text().replace("−", "-"))
    assert told == pytest.approx(sum(forced) - sum(before["output"]["log_probs"]), abs=2e-4)
    assert at(page, "head-off-translation").get_attribute("data-text") == own
    page.evaluate("where => { location.hash = where; }", f"#open={CROSS}&tab=masks")
    at(page, "mask-sentence").click()
    at(page, "mask-use").click()
    at(page, "mask-key-0").click()
    page.get_by_text("pairs blocked in").wait_for()
    said = at(page, "changed").inner_text()
    assert f"{CROSS} head 1 is off" in said
    at(page, "undo").click()
    expect(at(page, "changed")).not_to_be_visible()
    assert at(page, "pair").inner_text().endswith(before["target"]["text"].strip())


def test_another_word_is_forced(look: Looker):
    page = look.open(in_file(), "#open=next_word&target=0")
    before = in_file()["traces"][0]
    likeliest = [one["id"] for one in before["output"]["top"][0]]
    rank = next(i for i, token in enumerate(likeliest) if token != labels_of(before)[0])
    at(page, f"nw-force-{rank + 1}").click()
    at(page, "nw-prefix").wait_for()
    found = trace(Translator(half(), names=["small"]), TEXT, prefix=[likeliest[rank]])
    wanted = found.to_json()["traces"][0]
    assert at(page, "pair").inner_text().endswith(wanted["target"]["text"].strip())
    expect(at(page, "nw-compare")).to_be_visible()


def test_all_of_it_by_keyboard(look: Looker):
    page = masks_of(look, CROSS)
    at(page, "mask-use").focus()
    page.keyboard.press("Enter")
    at(page, "mask-cell-0-0").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("c")
    at(page, "changed").wait_for()
    idle(page)
    rows = len(labels_of(in_file()["traces"][0]))
    assert f"{rows} pairs blocked" in at(page, "changed").inner_text()
    page.keyboard.press("c")
    at(page, "changed").wait_for(state="detached")
    page.keyboard.press(" ")
    page.get_by_text("1 pair blocked").wait_for()
    at(page, "undo").focus()
    page.keyboard.press("Enter")
    at(page, "changed").wait_for(state="detached")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_in_a_changed_page(look: Looker, scheme: str):
    page = masks_of(look, CROSS, color_scheme=scheme, reduced_motion="reduce", width=390)
    at(page, "mask-use").click()
    at(page, "mask-cell-0-0").click()
    at(page, "changed").wait_for()
    idle(page)
    assert violations(page) == []
    wide = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert wide[0] <= wide[1]


def test_a_file_without_the_model_says_why_not(look: Looker):
    document = {**in_file(), "weights": None}
    document["traces"] = [trace(Translator(half(), names=["small"]), TEXT).to_json()["traces"][0]]
    page = look.open(document, f"#open={CROSS}&tab=masks")
    at(page, "mask-sentence").click()
    assert at(page, "mask-use").get_attribute("aria-disabled") == "true"
    assert "holds recorded answers and no model" in at(page, "mask-why").inner_text()
    at(page, "mask-use").click(force=True)
    assert at(page, "mask-use").get_attribute("aria-pressed") == "false"
