"""Training inside the page, in a real browser: gradients, Adam, the toy; and the station."""

import base64
import copy
import json
import math
from typing import Any

import pytest
import torch
from looker import Looker
from pages import SOURCE, TARGET, serving, traced
from playwright.sync_api import expect
from test_page import at, badges
from torch import Tensor
from torch.nn import functional

from transduce.bundle import Bundle
from transduce.decode.translator import Translator
from transduce.ids import BOS, EOS, PAD
from transduce.model.config import TransformerConfig
from transduce.model.transformer import Transformer
from transduce.text.tokenizer import TokenizerConfig, train_tokenizer
from transduce.trace.trace import trace
from transduce.trace.training import training_step
from transduce.trace.weights import weights

SIZES = {"d_model": 16, "heads": 2, "d_ff": 24, "encoder_layers": 2, "decoder_layers": 2}
KINDS = {
    "paper": {},
    "pre-norm": {"norm": "pre", "activation": "gelu"},
    "learned": {"positions": "learned", "activation": "silu", "tie": "decoder"},
    "separate": {"tie": "none", "target": 320, "d_k": 3, "d_v": 5},
    "pre-norm, learned, untied": {"norm": "pre", "positions": "learned", "tie": "none"},
}


def made(target: int = 300, **changes: Any) -> Bundle:
    """A small model whose every parameter is random."""
    lines = [SOURCE, TARGET, "It was too wide.", "Elle était trop large."] * 5
    ours = train_tokenizer(lines, TokenizerConfig(), vocab_size=300)
    theirs = ours if target == 300 else train_tokenizer(lines, TokenizerConfig(), vocab_size=target)
    sizes = {"source_vocab_size": 300, "target_vocab_size": target, "max_length": 40}
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = Transformer(TransformerConfig.model_validate(sizes | SIZES | changes)).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
    about = {"source_language": "en", "target_language": "fr", "licence": ""}
    return Bundle(model, ours, theirs, about)


def alive(bundle: Bundle) -> dict[str, Any]:
    """A document with the model inside."""
    document = trace(Translator(bundle, names=["small"]), "It was.", "Elle était.").to_json()
    document["weights"] = weights(bundle, "float32")
    return document


PAIR = {"source": [7, 100, 42, 7, EOS], "labels": [60, 9, 270, 60, 11, EOS]}


def loss(model: Transformer, *, causal: bool = True, pair: dict[str, list[int]] = PAIR) -> Tensor:
    source, labels = torch.tensor([pair["source"]]), torch.tensor(pair["labels"])
    shifted = torch.tensor([[BOS, *pair["labels"][:-1]]])
    if causal:
        return functional.cross_entropy(model(source, shifted)[0], labels)
    memory, memory_mask = model.encode(source)
    everywhere = (shifted != PAD)[:, None, None, :].expand(-1, -1, len(labels), -1)
    x = model.target_embedding(shifted)
    for layer in model.decoder:
        x = layer(x, memory, everywhere, memory_mask)
    return functional.cross_entropy(model.output(model.decoder_norm(x))[0], labels)


# ---- the engine


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_and_steps_are_pytorchs(look: Looker, kind: str):
    bundle = made(**KINDS[kind])
    page = look.open(alive(bundle))
    found = page.evaluate("pair => transduce.gradients(pair)", PAIR)
    losses = page.evaluate("pair => transduce.teach({ ...pair, steps: 5, rate: 2e-3 })", PAIR)
    model = copy.deepcopy(bundle.model)
    first = loss(model)
    first.backward()
    assert sum(found["costs"]) / len(found["costs"]) == pytest.approx(first.item(), abs=1e-5)
    parameters = dict(model.named_parameters())
    assert found["gradients"].keys() == {
        name for name, parameter in parameters.items() if parameter.grad is not None
    }
    for name, numbers in found["gradients"].items():
        wanted = parameters[name].grad.flatten()
        # A bias of keys changes no weight: its gradient is rounding alone.
        largest = max(wanted.abs().max().item(), 1e-3)
        assert (torch.tensor(numbers) - wanted).abs().max().item() <= 1e-4 * largest, name
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3, betas=(0.9, 0.98), eps=1e-9)
    expected = [first.item()]
    for _ in range(5):
        optimizer.zero_grad()
        loss(model).backward()
        optimizer.step()
        expected.append(loss(model).item())
    assert losses == pytest.approx(expected, abs=1e-4)
    assert look.problems == []


def test_gradients_are_those_of_the_pass_as_it_was_changed(look: Looker):
    bundle = made(positions="learned")
    page = look.open(alive(bundle))
    change = "(pair) => transduce.gradients({ ...pair, edits: EDITS })"

    def found(edits: str) -> dict[str, Tensor]:
        each = page.evaluate(change.replace("EDITS", edits), PAIR)["gradients"]
        return {name: torch.tensor(numbers) for name, numbers in each.items()}

    model = copy.deepcopy(bundle.model)
    loss(model, causal=False).backward()
    cheating = found("{ causal: false }")
    for name, parameter in model.named_parameters():
        largest = max(parameter.grad.abs().max().item(), 1e-3)
        far = (cheating[name] - parameter.grad.flatten()).abs().max().item()
        assert far <= 1e-4 * largest, name
    assert "target_embedding.positions" not in found("{ positions: false }")
    silent = found("{ off: [['decoder.1.cross_attention', 1]] }")
    weight = silent["decoder.1.cross_attention.output.weight"].view(16, 16)
    assert (weight[:, 8:] == 0).all()
    assert (weight[:, :8] != 0).any()
    cell = "{ block: 'decoder.0.self_attention', head: null, query: QUERY, key: KEY }"
    cells = ", ".join(
        cell.replace("QUERY", str(q)).replace("KEY", str(k)) for q in range(1, 6) for k in range(q)
    )
    alone = found(f"{{ blocked: [{cells}] }}")  # each position sees itself: queries cannot matter
    assert alone["decoder.0.self_attention.query.weight"].abs().max() < 1e-7
    assert alone["decoder.0.self_attention.value.weight"].abs().max() > 1e-4


def test_the_toy_reaches_claim_82(look: Looker):
    page = look.open(traced())
    honest, cheater = (
        page.evaluate(f"() => transduce.toy({{ causal: {causal} }})")
        for causal in ("true", "false")
    )
    guess = math.log(12)
    assert honest["losses"][0] == pytest.approx(guess, abs=1.2)
    assert honest["taught"] == pytest.approx([guess] * 7, abs=0.03)
    assert honest["writing"] == pytest.approx([guess] * 7, abs=0.05)
    assert max(cheater["taught"][:6]) < 0.01
    assert cheater["taught"][6] == pytest.approx(guess, abs=0.03)
    assert sum(cheater["taught"]) / 7 == pytest.approx(guess / 7, abs=0.01)
    assert min(cheater["writing"][1:6]) > 2 * guess  # of what it learnt nothing is there


# ---- the station

OPEN = "#open=training&target=3"


def number(page: Any, testid: str, name: str = "value") -> float:
    return float(at(page, testid).get_attribute(f"data-{name}"))


def logits_of(document: Any) -> tuple[Tensor, Tensor]:
    one = document["traces"][0]
    raw = torch.frombuffer(
        bytearray(base64.b64decode(one["tensors"]["output"]["f32"])), dtype=torch.float32
    )
    labels = torch.tensor([token["id"] for token in one["target"]["labels"]])
    return raw.view(len(labels), -1).double(), labels


def test_each_position_says_what_it_may_see(look: Looker):
    page = look.open(traced(), OPEN)
    pieces = [token["piece"] for token in traced()["traces"][0]["target"]["input"]]
    at(page, "tr-position-3").focus()
    page.keyboard.press("ArrowRight")
    assert at(page, "tr-position-4").get_attribute("aria-pressed") == "true"
    said = at(page, "tr-said").inner_text()
    assert said.startswith(f"Position 4 reads {pieces[4]}")
    assert "(positions 0 to 4)" in said
    assert f"Its label is {pieces[5]}" in said
    assert "must not see position 5 and those after it" in said
    at(page, "tr-position-2").click()
    assert "(positions 0 to 2)" in at(page, "tr-said").inner_text()
    assert page.locator("td.bracket").get_attribute("colspan") == "3"
    hatched = page.locator("td.hatch-causal").count()
    assert hatched == len(pieces) - 3
    page.keyboard.press("End")
    assert "Its label is EOS" in at(page, "tr-said").inner_text()
    assert "Nothing comes after it" in at(page, "tr-said").inner_text()
    at(page, "tr-batch").click()
    table = page.get_by_role("region", name="A batch of two targets")
    assert table.locator("td.own").count() == 7
    assert table.locator("td.hatch-padding").count() == 1
    assert look.problems == []


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 0.35])
def test_the_loss_is_pytorchs_with_smoothing_or_without(look: Looker, epsilon: float):
    page = look.open(traced(), OPEN)
    logits, labels = logits_of(traced())
    assert number(page, "tr-mean") == pytest.approx(
        functional.cross_entropy(logits, labels).item(), abs=1e-5
    )
    at(page, "tr-epsilon").fill(str(epsilon))
    wanted = functional.cross_entropy(logits, labels, reduction="none", label_smoothing=epsilon)
    found = [number(page, f"tr-loss-{i}") for i in range(len(labels))]
    assert found == pytest.approx(wanted.tolist(), abs=1e-5)
    if epsilon:
        assert number(page, "tr-smoothed") == pytest.approx(wanted.mean().item(), abs=1e-5)
        ideal = torch.full((logits.shape[1],), epsilon / logits.shape[1], dtype=torch.float64)
        ideal[0] += 1 - epsilon
        least = torch.distributions.Categorical(ideal).entropy().item()
        assert number(page, "tr-smoothed", "least") == pytest.approx(least, abs=1e-6)
        assert wanted.min() >= least
    assert badges(page, "loss-sum") == {"badge-loss-sum": "true"}
    page.get_by_role("button", name="To the search").click()
    expect(at(page, "nw-entropy")).to_be_visible()


def test_the_gradient_is_autograds(look: Looker):
    page = look.open(traced(), OPEN)
    logits, labels = logits_of(traced())
    logits.requires_grad_()
    functional.cross_entropy(logits, labels).backward()
    order = logits[3].argsort(descending=True, stable=True).tolist()
    for rank, token in enumerate(order[:10], start=1):
        slope = logits.grad[3, token].item()
        assert number(page, f"tr-slope-{rank}") == pytest.approx(slope, abs=1e-7)
    own = order.index(labels[3].item()) + 1
    assert number(page, f"tr-slope-{own}") < 0
    assert "up" in at(page, f"tr-slope-{own}").inner_text()
    assert abs(number(page, "tr-slopes", "sum")) < 1e-6
    page.get_by_role("button", name="Next position").click()
    assert at(page, "tr-position-4").get_attribute("aria-pressed") == "true"


def test_a_recorded_step_is_shown_and_no_other_can_be_made(look: Looker):
    document = traced(answers=True)
    training = document["traces"][0]["training"]
    page = look.open(document, OPEN)
    n = len(training["before"])
    assert number(page, "tr-step", "before") == pytest.approx(sum(training["before"]) / n)
    assert number(page, "tr-step", "after") == pytest.approx(sum(training["after"]) / n)
    for name, moved in training["modules"].items():
        assert number(page, f"tr-module-{name}", "moved") == pytest.approx(moved["moved"])
    for button in ("tr-take", "tr-take-10", "tr-rate-0.01", "tr-cheat", "tr-back"):
        assert at(page, button).is_disabled()
    assert "This file holds recorded answers and no model" in at(page, "station").inner_text()
    stop = page.locator("article", has_text="How it learnt this")
    assert f"{sum(training['after']) / n:.4f} after one step" in stop.inner_text()
    assert "let a toy model learn" in stop.inner_text()
    plain = look.open(traced(), OPEN)
    assert "No step was recorded in this file" in at(plain, "station").inner_text()


def test_steps_are_taken_by_the_model_inside(look: Looker):
    bundle = made()
    document = alive(bundle)
    document["traces"] += trace(Translator(bundle), "It was too wide.").to_json()["traces"]
    one = document["traces"][0]
    page = look.open(document, OPEN.replace("3", "1"))
    source, labels = (
        [token["id"] for token in tokens]
        for tokens in (one["source"]["tokens"], one["target"]["labels"])
    )
    wanted = training_step(bundle.model, source, labels, 1e-2)
    at(page, "tr-rate-0.01").click()
    at(page, "tr-take").click()
    at(page, "tr-own").wait_for()
    n = len(labels)
    assert number(page, "tr-step", "before") == pytest.approx(sum(wanted.before) / n, abs=1e-4)
    assert number(page, "tr-step", "after") == pytest.approx(sum(wanted.after) / n, abs=1e-3)
    for name, moved in wanted.modules.items():
        assert number(page, f"tr-module-{name}", "moved") == pytest.approx(moved.moved, rel=0.02)
    for _ in range(8):
        at(page, "tr-take-10").click()
        page.locator("[data-testid=tr-take]:not([disabled])").wait_for()
    assert number(page, "tr-step", "steps") == 81
    assert number(page, "tr-step", "after") < 0.1
    assert at(page, "tr-own").inner_text() == "Elle était."  # it says what it was taught
    assert at(page, "tr-other").input_value() == "It was too wide."
    assert at(page, "tr-other-said").inner_text()
    at(page, "tr-back").click()
    assert at(page, "tr-own").count() == 0
    again = page.evaluate("request => transduce.trace(request)", {"text": "It was."})
    assert (
        again["traces"][0]["searches"]["greedy"]["hypotheses"][0]["tokens"]
        == (
            trace(Translator(bundle), "It was.").to_json()["traces"][0]["searches"]["greedy"][
                "hypotheses"
            ][0]["tokens"]
        )
    )  # the model itself was never changed
    assert look.problems == []


def test_without_its_causal_mask_this_model_is_another(look: Looker):
    bundle = made()
    document = alive(bundle)
    page = look.open(document, OPEN.replace("3", "1"))
    one = document["traces"][0]
    pair = {
        "source": [token["id"] for token in one["source"]["tokens"]],
        "labels": [token["id"] for token in one["target"]["labels"]],
    }
    at(page, "tr-cheat").click()
    wanted = loss(bundle.model, causal=False, pair=pair).item()
    assert number(page, "tr-cheated") == pytest.approx(wanted, abs=1e-4)
    assert abs(wanted - number(page, "tr-mean")) > 1e-3


def test_the_toy_learns_in_every_page_and_can_be_stopped(look: Looker):
    page = look.open(traced(), OPEN)
    run, step = at(page, "leak-run"), at(page, "leak-step")
    run.click()
    for _ in range(200):  # it may go too fast to be seen at any one step
        if number(page, "leak-step") >= 10:
            break
        page.wait_for_timeout(50)
    assert number(page, "leak-step") >= 10
    run.click()
    page.wait_for_timeout(200)
    here = step.get_attribute("data-value")
    page.wait_for_timeout(400)
    assert step.get_attribute("data-value") == here
    assert run.inner_text() == "Go on"
    for side in (0, 1):
        assert number(page, f"leak-{side}-6") == pytest.approx(math.log(12), abs=1.5)
    assert look.problems == []


def test_the_recipes_rates(look: Looker):
    page = look.open(traced(), OPEN)
    rates = json.loads(at(page, "tr-rates").get_attribute("data-values"))
    assert rates == pytest.approx([1.746928e-7, 6.987712e-4, 1.397542e-4], rel=1e-6)


def test_it_fits_a_phone_and_speaks_before_it_shows(look: Looker):
    page = look.open(traced(answers=True), OPEN, width=390)
    at(page, "tr-batch").click()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    questions = page.locator("summary", has_text="Predict first:")
    assert questions.count() == 6
    questions.first.click()
    expect(page.get_by_text("the end has to be learnt too")).to_be_visible()


def test_the_weights_of_a_server_are_taught_in_the_page(look: Looker):
    with serving() as client:
        page = look.at(f"http://{client.host}/", offline=False)
        at(page, "text").fill("It was too wide.")
        at(page, "translate").click()
        at(page, "pair").wait_for()
        at(page, "open-training").click()
        at(page, "tr-take").click()
        at(page, "tr-own").wait_for()
        assert number(page, "tr-step", "after") < number(page, "tr-step", "before")
        at(page, "tr-other").fill(SOURCE)
        at(page, "tr-other").press("Enter")
        page.wait_for_timeout(300)
        assert at(page, "tr-other-said").inner_text()
    assert look.problems == []
