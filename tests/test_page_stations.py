"""Two stations of the page and the replay of its cards, in a real browser."""

import copy
import math
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from looker import Looker
from pages import SOURCE, TARGET, serving, traced, translator
from test_page import array, at, badges, change
from torch import nn
from torch.nn import functional

from transduce.bundle import Bundle
from transduce.decode.translator import Translator
from transduce.ids import BOS, EOS, PAD, UNK
from transduce.model.config import TransformerConfig
from transduce.model.transformer import Transformer
from transduce.trace.trace import trace
from transduce.trace.weights import weights

KINDS = {
    "paper": {"tie": "all"},
    "pre-norm": {"norm": "pre", "activation": "gelu", "position_layout": "halves"},
    "learned": {"positions": "learned", "activation": "silu", "d_k": 3, "d_v": 5, "tie": "none"},
    "tensor2tensor": {"position_frequency": "tensor2tensor", "position_offset": 2},
}
RESIDUAL = "encoder.1.self_attention_residual"
FEED_FORWARD = "decoder.1.feed_forward"
STATIONS = [
    "#open=source_embedding&source=2",
    "#open=target_embedding&target=3",
    f"#open={RESIDUAL}&source=2",
    f"#open={FEED_FORWARD}&target=3",
]


@cache
def model(kind: str) -> Translator:
    """A small model of a kind whose every parameter, norms and biases too, is random."""
    tokenizer = translator().bundles[0].source_tokenizer
    sizes = {"d_model": 32, "heads": 4, "d_ff": 48, "encoder_layers": 2, "decoder_layers": 2}
    sizes |= {"source_vocab_size": tokenizer.size, "target_vocab_size": tokenizer.size}
    with torch.random.fork_rng():
        torch.manual_seed(3)
        made = Transformer(
            TransformerConfig.model_validate(sizes | {"max_length": 80} | KINDS[kind])
        ).eval()
        with torch.no_grad():
            for parameter in made.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
    about = {"source_language": "en", "target_language": "fr", "licence": ""}
    return Translator(Bundle(made, tokenizer, tokenizer, about), names=["small"])


@cache
def document(kind: str) -> Any:
    """A trace as PyTorch computed it, and the model's own numbers beside it."""
    found = trace(model(kind), SOURCE, TARGET).to_json()
    return found | {"weights": weights(model(kind).bundles[0], "float32")}


def tensor(of: Any, name: str) -> np.ndarray:
    return array(of["traces"][0]["tensors"][name]).astype(np.float64)


def told(page: Any, testid: str, name: str) -> float:
    return float(at(page, testid).get_attribute(f"data-{name}"))


# ---- tokens and positions


def waves(length: int, d: int) -> np.ndarray:
    """The paper's formula, one number at a time."""
    return np.array(
        [
            [(math.cos if j % 2 else math.sin)(p / 10_000 ** ((j - j % 2) / d)) for j in range(d)]
            for p in range(length)
        ]
    )


def test_the_papers_positions_at_any_size(look: Looker):
    """Claims 34 to 39."""
    page = look.open(traced(), STATIONS[0])
    at(page, "places-formula").click()
    at(page, "places-d").fill("3")
    row = at(page, "places-row").inner_text()
    assert "[0.841471, 0.540302, 0.099833, 0.995004, 0.010000, 0.999950, 0.001000, 1.000000]" in row
    at(page, "places-d").fill("9")
    table = waves(32, 512)
    for position in (0, 1, 2):
        at(page, "places-position").fill(str(position))
        wanted = ", ".join(f"{x:.6f}" for x in table[position, :8]).replace("-", "−")
        assert f"PE({position}) = [{wanted}" in at(page, "places-row").inner_text()
        assert at(page, "places-square").inner_text() == "256.0000"
    assert "√d = 22.627417" in page.locator("p", has=at(page, "places-square")).inner_text()
    assert "9646.62 · 2π" in at(page, "places-longest").inner_text()
    for k, wanted in ((1, 249.1021), (5, 189.5967)):
        assert wanted == pytest.approx(table[3] @ table[3 + k], abs=5e-5)
        at(page, "places-k").fill(str(k))
        assert f"= {wanted};" in at(page, "places-dot").inner_text()
    assert look.problems == []


@pytest.mark.parametrize("kind", KINDS)
def test_recorded_positions_are_drawn_and_checked(look: Looker, kind: str):
    page = look.open(document(kind), STATIONS[0])
    rows = tensor(document(kind), "source_embedding.positions")
    wanted = ", ".join(f"{x:.6f}" for x in rows[2, :8]).replace("-", "−")
    assert f"[{wanted}" in at(page, "places-row").inner_text()
    at(page, "places-k").fill("3")
    mean = np.mean([rows[p] @ rows[p + 3] for p in range(len(rows) - 3)])
    assert f"= {mean:.4f};".replace("-", "−") in at(page, "places-dot").inner_text()
    shown = badges(page)
    assert set(shown.values()) == {"true"}
    assert ("badge-positions-formula" in shown) == (kind != "learned")
    changed = copy.deepcopy(document(kind))
    change(changed["traces"][0], "source_embedding.positions", lambda x: x + 0.01)
    again = badges(look.open(changed, STATIONS[0]))
    assert again.get("badge-positions-formula", "false") == "false"
    assert again["badge-embedding-sum"] == "false"


def test_lengths_and_the_factor(look: Looker):
    """Claims 34 and 37."""
    page = look.open(traced(), STATIONS[0])
    assert at(page, "balance-root").inner_text() == f"{math.sqrt(32):.6f}"
    table = np.linalg.norm(tensor(traced(), "source_embedding.table"), axis=1)
    for factor in (math.sqrt(32), 1):
        for i in (0, 5):
            assert told(page, f"balance-{i}", "e") == pytest.approx(table[i], rel=1e-6)
            assert told(page, f"balance-{i}", "piece") == pytest.approx(factor * table[i], rel=1e-6)
            assert told(page, f"balance-{i}", "place") == pytest.approx(4, rel=1e-6)
        at(page, "balance-factor").click()
    assert at(page, "balance-square").inner_text() == "16.0000"


def test_the_same_piece_has_one_row_and_two_ends(look: Looker):
    """Claim 41."""
    twice = traced("The street was wide. It was wide.", None)
    page = look.open(twice, STATIONS[0])
    tokens = [token["id"] for token in twice["traces"][0]["source"]["tokens"]]
    second = next(j for j, token in enumerate(tokens) if token in tokens[:j])
    first = tokens.index(tokens[second])
    ends = tensor(twice, "encoder_norm")
    apart = np.abs(ends[first] - ends[second]).max()
    text = at(page, "rows-twice").inner_text()
    assert f"at {first} and at {second}" in text
    assert "largest difference 0" in text
    assert f"{apart:.4f}" in text
    assert badges(page)["badge-same-row"] == "true"
    shapes = at(page, "rows-shapes").inner_text()
    assert f"[{len(tokens)}, 32]" in shapes
    assert "[470, 32]" in shapes


def greedy(of: Transformer, source: list[int]) -> list[int]:
    """The likeliest id each time, from whole forced passes."""
    found, limit = [BOS], min(of.config.max_length, len(source) - 1 + 50)
    with torch.no_grad():
        while len(found) < limit:
            logits = of(torch.tensor([source]), torch.tensor([found]))[0, -1]
            logits[[PAD, BOS, UNK]] = -torch.inf
            found.append(int(logits.argmax()))
            if found[-1] == EOS:
                break
    return [token for token in found[1:] if token != EOS]


def placeless(kind: str) -> Transformer:
    """The same model, its positions all 0."""
    of = copy.deepcopy(model(kind).bundles[0].model)
    with torch.no_grad():
        of.source_embedding.positions.zero_()
        of.target_embedding.positions.zero_()
    return of


@pytest.mark.parametrize("kind", ["paper", "learned"])
def test_without_positions_order_is_lost_and_nothing_else(look: Looker, kind: str):
    """Claim 40, with PyTorch beside it."""
    page = look.open(document(kind), STATIONS[0])
    at(page, "shuffle-reverse").click()
    at(page, "shuffle-rows").wait_for(timeout=60_000)
    ids = [token["id"] for token in document(kind)["traces"][0]["source"]["tokens"]]
    back = [*ids[-2::-1], EOS]
    order = [*range(len(ids) - 2, -1, -1), len(ids) - 1]
    tokenizer = model(kind).bundles[0].target_tokenizer
    for name, of in (("", model(kind).bundles[0].model), ("bare", placeless(kind))):
        rows = []
        for row, source in (("plain", ids), ("mixed", back)):
            testid = "-".join(filter(None, ["shuffle", name, row])).replace("bare-plain", "bare")
            said = at(page, testid).get_attribute("data-text")
            assert said == tokenizer.decode(greedy(of, source))
            with torch.no_grad():
                rows.append(of.encode(torch.tensor([source]))[0][0])
        apart = (rows[1] - rows[0][order]).abs().max().item()
        shown = told(page, "-".join(filter(None, ["shuffle", name, "mixed"])), "apart")
        assert shown == pytest.approx(apart, abs=1e-4)
        assert (shown < 1e-5) == (name == "bare")
    assert look.problems == []


def test_without_the_model_the_shuffle_says_why_not(look: Looker):
    page = look.open(traced(), STATIONS[0])
    assert at(page, "shuffle").is_disabled()
    assert "no model" in at(page, "shuffle-reason").inner_text()


# ---- the rest of the block


def test_the_direct_path_in_numbers(look: Looker):
    page = look.open(traced(), STATIONS[2])
    x = tensor(traced(), "encoder.0.feed_forward_residual.norm")[2]
    found = tensor(traced(), "encoder.1.self_attention.output")[2]
    total = tensor(traced(), f"{RESIDUAL}.sum")[2]
    text = at(page, "direct-numbers").inner_text()
    for vector in (x, found, total):
        assert f"= {np.linalg.norm(vector):.4f}" in text
    cosine = x @ found / np.linalg.norm(x) / np.linalg.norm(found)
    assert f"cosine {cosine:.4f}".replace("-", "−") in text
    share = 100 * (x @ total) / (total @ total)
    assert at(page, "direct-share").inner_text() == f"{share:.1f} %"
    start = tensor(traced(), "source_embedding")[2]
    end = tensor(traced(), f"{RESIDUAL}.norm")[2]
    line = at(page, f"stream-{RESIDUAL}.norm").inner_text()
    assert f"{np.linalg.norm(end):.2f}" in line
    cosine = start @ end / np.linalg.norm(start) / np.linalg.norm(end)
    assert f"{cosine:.3f}".replace("-", "−") in line
    assert page.locator('[data-testid="stream"] tbody tr').count() == 5
    assert at(page, "path-post").get_attribute("data-own") == "true"


@pytest.mark.parametrize("kind", KINDS)
def test_layer_norm_is_over_features(look: Looker, kind: str):
    """Claims 69 to 71."""
    pre = kind == "pre-norm"
    stop = f"{RESIDUAL}.norm" if pre else RESIDUAL
    page = look.open(document(kind), f"#open={stop}&source=2")
    before = tensor(
        document(kind), "encoder.0.feed_forward_residual.sum" if pre else f"{RESIDUAL}.sum"
    )[2]
    after = tensor(document(kind), f"{RESIDUAL}.norm")[2]
    for name, row in (("before", before), ("after", after)):
        assert told(page, f"norm-{name}", "mean") == pytest.approx(row.mean(), abs=1e-6)
        assert told(page, f"norm-{name}", "variance") == pytest.approx(row.var(), rel=1e-5)
    assert abs(told(page, "norm-unit", "mean")) < 1e-6
    assert told(page, "norm-unit", "variance") == pytest.approx(1, abs=1e-5)
    assert badges(page)["badge-norm-replay"] == "true"
    at(page, "norm-change").click()
    own, other = at(page, "norm-moved").locator("b").all_inner_texts()
    assert own == "0"
    assert float(other) > 0.01
    paths = {name: at(page, f"path-{name}").get_attribute("data-own") for name in ("pre", "post")}
    assert paths == {"pre": str(pre).lower(), "post": str(not pre).lower()}
    if pre:
        page.evaluate("where => { location.hash = where; }", f"#open={RESIDUAL}.sum&source=2")
        assert page.locator('[data-testid="stream"] tbody tr').count() == 5
        assert badges(page)["badge-direct-sum"] == "true"
    assert look.problems == []


@pytest.mark.parametrize("kind", KINDS)
def test_feed_forward_units_and_their_curve(look: Looker, kind: str):
    """Claim 66, and the activation from torch."""
    page = look.open(document(kind), STATIONS[3])
    active = tensor(document(kind), f"{FEED_FORWARD}.activation")
    inner = tensor(document(kind), f"{FEED_FORWARD}.inner")
    assert told(page, "ff-above", "above") == (active[3] > 0).sum()
    at(page, "ff-rank").fill("1")
    unit = int(np.argsort(-active[3], kind="stable")[1])
    bend = getattr(functional, document(kind)["model"]["config"]["activation"])
    value = bend(torch.tensor(inner[3, unit])).item()
    wanted = f"Unit {unit}: inner {inner[3, unit]:.4f} → {value:.4f}"
    assert wanted in at(page, "ff-unit").inner_text()
    shown = badges(page)
    assert shown["badge-ff-curve"] == shown["badge-ff-alone"] == "true"
    lines = at(page, "ff-positions").locator("li").all_inner_texts()
    for i, line in enumerate(lines):
        both = ((active[i] > 0) & (active[3] > 0)).sum()
        assert f"{(active[i] > 0).sum()} on, {both} shared" in line
    changed = copy.deepcopy(document(kind))
    change(changed["traces"][0], f"{FEED_FORWARD}.outer", lambda x: x[::-1])
    assert badges(look.open(changed, STATIONS[3]))["badge-ff-alone"] == "false"


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def test_parameters_are_those_of_torchs_modules(look: Looker):
    """Claims 65, 67, 68."""
    page = look.open(traced(), STATIONS[3])
    feed = nn.Sequential(nn.Linear(512, 2048), nn.Linear(2048, 512))
    encoder, decoder = nn.TransformerEncoderLayer(512, 8), nn.TransformerDecoderLayer(512, 8)
    base = {
        "attention": count(nn.MultiheadAttention(512, 8)),
        "ff": count(feed),
        "norm": count(nn.LayerNorm(512)),
        "encoder": count(encoder),
        "decoder": count(decoder),
        "encoders": 6 * count(encoder),
        "decoders": 6 * count(decoder),
    }
    base["total"] = base["encoders"] + base["decoders"] + 37_000 * 512
    assert base["ff"] == 2_099_712
    assert base["total"] == 63_082_496
    for name, n in base.items():
        assert f"{n:,}" in at(page, f"counts-{name}").inner_text()
    own = translator().bundles[0].model
    for name, n in {"decoder": count(own.decoder[0]), "total": count(own)}.items():
        assert f"{n:,}" in at(page, f"counts-{name}").inner_text()
    assert badges(page)["badge-counts"] == "true"
    assert badges(look.open(document("learned"), STATIONS[3]))["badge-counts"] == "true"
    changed = copy.deepcopy(traced())
    changed["model"]["parameters"]["by_module"]["decoder.0.feed_forward"] -= 1
    assert badges(look.open(changed, STATIONS[3]))["badge-counts"] == "false"


def test_dropout_is_drawn_again_and_keeps_its_mean(look: Looker):
    """Claim 72."""
    page = look.open(traced(), STATIONS[2])
    at(page, "dropout-p").fill("0.5")
    first = at(page, "dropout-numbers").inner_text()
    assert "1/(1 − p) = 2.0000" in first
    kept = int(first.split(" of ")[0])
    assert 4 <= kept <= 28  # of 32, p = 0.5
    off = float(first.split("off by ")[1].split(" ")[0])
    largest = float(first.rstrip(".").split()[-1])
    assert 0 < off < 5 * largest / math.sqrt(1000)
    at(page, "dropout-again").click()
    assert at(page, "dropout-numbers").inner_text() != first
    again = look.open(traced(), STATIONS[2])
    at(again, "dropout-p").fill("0.5")
    assert at(again, "dropout-numbers").inner_text() == first


# ---- every card


def unfold(page: Any) -> None:
    """Open all cards, and have each computed again."""
    for prefix in ("closer-", "again-"):
        page.evaluate(  # a hundred clicks by the mouse take seconds
            """async prefix => {
              document.querySelectorAll(`[data-testid^="${prefix}"]`).forEach((b) => b.click());
              await new Promise(requestAnimationFrame);
            }""",
            prefix,
        )


@pytest.mark.parametrize("kind", KINDS)
def test_every_step_is_computed_again_as_pytorch_did(look: Looker, kind: str):
    page = look.open(document(kind), "#source=2&target=3")
    unfold(page)
    one = document(kind)["traces"][0]
    shown = badges(page, "replay-")
    assert len(shown) == len(one["steps"])
    assert set(shown.values()) == {"true"}
    for name in (step["name"] for step in one["steps"]):
        card = at(page, f"replay-{name}")
        card.get_by_test_id("replay-number").fill("1")
        source = name.startswith(("source", "encoder")) or name.endswith(
            ("cross_attention.key", "cross_attention.value")
        )
        row = tensor(document(kind), name)[..., 2 if source else 3, 1].flat[0]
        found = card.get_by_test_id("replay-one").get_attribute("data-value")
        assert float(found) == pytest.approx(row, abs=1e-4)
    assert look.problems == []


@pytest.mark.parametrize(
    "name",
    [
        "source_embedding",
        "encoder.0.self_attention.query",
        "encoder.0.self_attention.scores",
        "decoder.1.self_attention.weights",
        "decoder.1.cross_attention.heads",
        "decoder.1.cross_attention.output",
        "decoder.0.feed_forward.activation",
        "decoder.0.feed_forward_residual.norm",
        "output",
    ],
)
def test_a_number_that_does_not_follow_is_red(look: Looker, name: str):
    def off(x: np.ndarray) -> np.ndarray:
        x.flat[-1] += 0.01
        return x

    changed = copy.deepcopy(document("paper"))
    change(changed["traces"][0], name, off)
    page = look.open(changed, "#source=2&target=3")
    unfold(page)
    assert badges(page)[f"badge-replay-{name}"] == "false"


def test_without_weights_what_needs_none_is_computed_again(look: Looker):
    page = look.open(traced(), "#source=2&target=3")
    unfold(page)
    steps = [step["name"] for step in traced()["traces"][0]["steps"]]
    leaves = ("table", "query", "key", "value", "output", "inner", "outer", ".norm")
    free = [name for name in steps if not name.endswith(leaves)]
    assert len(free) == 2 * 2 + 6 * 3 + 10 + 4 + 2  # embedding, attention, sums, activations, ends
    shown = badges(page, "replay-")
    assert shown == {f"badge-replay-{name}": "true" for name in free}
    reason = at(page, "replay-encoder.0.self_attention.query").inner_text()
    assert "needs weights" in reason


def test_heads_that_are_off_are_off_in_the_replay_too(look: Looker):
    of = model("paper")
    found = trace(of, SOURCE, TARGET, off=[("encoder.0.self_attention", 1)]).to_json()
    page = look.open(found | {"weights": weights(of.bundles[0], "float32")})
    unfold(page)
    assert set(badges(page, "replay-").values()) == {"true"}


def test_a_servers_weights_are_fetched_when_they_are_needed(look: Looker):
    name = "encoder.0.self_attention"
    with serving() as client:
        page = look.at(f"http://{client.host}/", offline=False)
        at(page, "text").fill(SOURCE)
        at(page, "translate").click()
        at(page, f"closer-{name}").click()
        assert not any(url.endswith("api/weights") for url in look.requests)
        at(page, f"again-{name}.query").click()
        at(page, f"badge-replay-{name}.query").wait_for()
        assert set(badges(page).values()) == {"true"}
        page.evaluate("where => { location.hash = where; }", STATIONS[2])
        assert badges(page)["badge-norm-replay"] == "true"
        assert sum(url.endswith("api/weights") for url in look.requests) == 1
    assert look.problems == []


# ---- for everybody


def test_the_keyboard_reaches_what_the_mouse_does(look: Looker):
    page = look.open(traced(), STATIONS[0])
    at(page, "places-position").focus()
    page.keyboard.press("ArrowRight")
    assert "source=3" in page.url
    assert "PE(3)" in at(page, "places-row").inner_text()
    at(page, "places-pair").focus()
    page.keyboard.press("End")
    assert at(page, "places-pair").input_value() == "15"
    page.keyboard.press("Escape")
    assert at(page, "embedding-station").count() == 0


def test_numbers_that_were_left_out_are_told(look: Looker):
    bare = copy.deepcopy(traced())
    bare["traces"][0]["tensors"] = {}
    for fragment in STATIONS:
        page = look.open(bare, fragment)
        assert "left out" in at(page, "station").inner_text()
    assert look.problems == []
