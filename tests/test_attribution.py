"""What each piece matters: against single passes, finite differences, and models that ignore."""

import base64
import copy
import json
from pathlib import Path
from typing import Any

import contract
import numpy as np
import pytest
import torch
from command import refused, transduce
from contract import read
from corpora import SMALL_OPTIONS, reversals
from pages import SOURCE, TARGET, serving, stored, translator
from torch import Tensor, nn
from tracing import SETTINGS, hooks, make, pair, without

from transduce import Translator, trace
from transduce.ids import EOS
from transduce.model.transformer import Transformer
from transduce.trace import attribution as attribution_module
from transduce.trace import trace as trace_module
from transduce.trace.attribution import MOST_PIECES, Attribution, attribution
from transduce.trace.record import heads_off
from transduce.trace.steps import attentions
from transduce.trace.trace import attributed

S, T = 5, 4


def decoded(tensor: dict) -> np.ndarray:
    return np.frombuffer(base64.b64decode(tensor["f32"]), "<f4").reshape(tensor["shape"])


def said(model: Transformer, source: list[int], decoder_input: list[int], labels: list[int]):
    """Log-probabilities of labels, in float64 where the model is."""
    with torch.no_grad():
        logits = model(torch.tensor([source]), torch.tensor([decoder_input]))[0]
    return logits.double().log_softmax(-1)[range(len(labels)), labels]


def by_hand(scores: Tensor, v: Tensor, allowed: Tensor) -> Tensor:
    """Attention with a loop: softmax over the keys that are left, nothing where none is."""
    mixed = torch.zeros(*scores.shape[:-1], v.shape[-1], dtype=v.dtype)
    for h in range(scores.shape[1]):
        for q in range(scores.shape[2]):
            keys = [k for k in range(scores.shape[3]) if allowed[q, k]]
            if keys:
                shares = scores[0, h, q, keys].softmax(-1)
                mixed[0, h, q] = sum(shares[i] * v[0, h, k] for i, k in enumerate(keys))
    return mixed


def one_hidden(model: Transformer, ids: Any, side: str, place: int) -> Tensor:
    """The pass in which one piece is no key anywhere: each attention is computed anew in a hook."""
    handles = []
    for block, pattern in attentions(model).items():
        attention = model.get_submodule(block)
        seen: dict[str, Tensor] = {}

        def scored(_: nn.Module, inputs: tuple, output: Tensor, seen=seen) -> None:
            seen["scores"] = output

        def valued(_: nn.Module, inputs: tuple, output: Tensor, seen=seen, of=attention) -> None:
            seen["v"] = of.split(output)

        def mixed(
            _: nn.Module, inputs: tuple, output: Tensor, seen=seen, pattern=pattern
        ) -> Tensor:
            allowed = torch.ones(seen["scores"].shape[-2:], dtype=torch.bool)
            if pattern == "decoder_self":
                allowed = allowed.tril()
            if (side == "target") == (pattern == "decoder_self"):
                allowed[:, place] = False
            return by_hand(seen["scores"], seen["v"], allowed)

        handles += [
            attention.scores.register_forward_hook(scored),
            attention.value.register_forward_hook(valued),
            attention.heads.register_forward_hook(mixed),
        ]
    try:
        return said(model, *ids)
    finally:
        for handle in handles:
            handle.remove()


@pytest.mark.parametrize("setting", SETTINGS)
def test_occlusion_is_the_fall_when_a_piece_is_no_key_one_by_one(setting):
    model, ids = make(**SETTINGS[setting]), pair(S, T)
    found = attribution(model, ids[0], ids[2]).occlusion
    intact = said(model, *ids)
    for side, length in (("source", S), ("target", T)):
        one = getattr(found, side)
        assert one.shape == (T, length)
        wanted = [intact - one_hidden(model, ids, side, place) for place in range(length)]
        assert torch.allclose(one.double(), torch.stack(wanted, dim=1), atol=2e-5)
        assert one.abs().max() > 0.01
    assert hooks(model) == 0


@pytest.mark.parametrize("setting", SETTINGS)
def test_gradient_is_the_slope_along_the_piece(setting):
    """Finite differences: the piece's row of E, at this one place, a little smaller and larger."""
    model, ids = make(**SETTINGS[setting]).double(), pair(S, T)
    found, step = attribution(model, ids[0], ids[2]).gradient, 1e-4
    for side, length in (("source", S), ("target", T)):
        embedding = getattr(model, f"{side}_embedding")
        rows = embedding.table(torch.tensor(ids[0] if side == "source" else ids[1])).detach()
        for place in range(length):
            ends = []
            for sign in (1, -1):
                change = torch.zeros(1, length, model.config.d_model, dtype=torch.float64)
                change[0, place] = sign * step * rows[place] * model.config.d_model**0.5
                handle = embedding.register_forward_hook(lambda _, i, out, by=change: out + by)
                ends.append(said(model, *ids))
                handle.remove()
            slope = (ends[0] - ends[1]) / (2 * step)
            assert torch.allclose(getattr(found, side)[:, place].double(), slope, atol=1e-5)


def test_a_piece_that_nobody_reads_does_not_matter():
    """Without cross-attention no source piece reaches the target; without both only its own."""
    model, ids = make(), pair(S, T)
    cross = [(b, h) for b, p in attentions(model).items() if p == "cross" for h in range(4)]
    own = [(b, h) for b, p in attentions(model).items() if p == "decoder_self" for h in range(4)]
    found = attribution(without(model, cross), ids[0], ids[2])
    for way in found:
        assert way.source.abs().max() < 1e-6
        assert way.target.abs().max() > 0.01
    found = attribution(without(model, cross + own), ids[0], ids[2])
    off_diagonal = 1 - torch.eye(T)
    assert found.occlusion.target.abs().max() < 1e-6  # the own piece stays in the residual stream
    assert (found.gradient.target * off_diagonal).abs().max() < 1e-6
    assert found.gradient.target.diagonal().abs().min() > 1e-4


def test_the_only_piece_that_is_read_is_all_that_matters():
    """A model whose source positions all read position 1 alone: attention is set by hand."""
    model, ids = make(), pair(S, T)
    for block, pattern in attentions(model).items():
        if pattern == "decoder_self":
            continue
        only = torch.full((S,), -torch.inf)
        only[1] = 0.0
        # Where that key is hidden nothing is left: the hooks of `hidden` come after this one.
        model.get_submodule(block).scores.register_forward_hook(
            lambda _, i, scores, only=only: scores * 0 + only.clamp(min=-80.0)
        )
    found = attribution(model, ids[0], ids[2])
    others = [0, 2, 3, 4]
    for way in found:
        assert way.source[:, 1].abs().max() > 0.01
        assert way.source[:, others].abs().max() < 1e-5


def test_later_pieces_do_not_matter_and_everything_is_finite():
    for s, t in ((1, 1), (1, 3), (4, 1), (3, 6)):
        source, _, labels = pair(s, t)
        found = attribution(make(), source, labels)
        for way in found:
            assert (way.source.shape, way.target.shape) == ((t, s), (t, t))
            assert way.target.triu(1).abs().max() < 1e-6
            assert all(side.dtype == torch.float32 and side.isfinite().all() for side in way)


def test_in_parts_it_is_the_same_and_the_model_is_left_as_it_was(monkeypatch):
    model, ids = make().train(), pair(S, T)
    whole = attribution(model, ids[0], ids[2])
    monkeypatch.setattr(attribution_module, "_LOGITS", 1)
    for a, b in zip(whole, attribution(model, ids[0], ids[2]), strict=True):
        assert all(torch.allclose(x, y, atol=1e-6) for x, y in zip(a, b, strict=True))
    assert model.training
    assert hooks(model) == 0
    assert all(p.grad is None for p in model.parameters())


def test_heads_that_are_off_stay_off():
    model, ids = make(), pair(S, T)
    off = [("decoder.0.cross_attention", 1), ("encoder.1.self_attention", 2)]
    with heads_off(model, off):
        found = attribution(model, ids[0], ids[2])
    wanted = attribution(without(model, off), ids[0], ids[2])
    for a, b in zip(found, wanted, strict=True):
        assert all(torch.allclose(x, y, atol=1e-5) for x, y in zip(a, b, strict=True))


# ---- in a trace and its document


def test_a_trace_with_answers_has_it_and_its_document_too():
    one = trace(translator(), SOURCE, TARGET, answers=True)
    assert isinstance(one.attribution, Attribution)
    wanted = attribution(translator().bundles[0].model, one.source, one.labels)
    (document,) = read(one.to_json())["traces"]
    for way, sides in wanted._asdict().items():
        for side, tensor in sides._asdict().items():
            assert np.array_equal(decoded(document["attribution"][way][side]), tensor.numpy())
    assert trace(translator(), SOURCE, TARGET).to_json()["traces"][0]["attribution"] is None
    assert trace(translator(), "", answers=True).attribution is None


def test_with_heads_off_it_is_of_that_pass():
    off = [("decoder.1.cross_attention", h) for h in range(4)]
    off += [("decoder.0.cross_attention", h) for h in range(4)]
    one = trace(translator(), SOURCE, TARGET, off=off, answers=True)
    assert one.attribution.occlusion.source.abs().max() < 1e-5


def test_of_more_pieces_it_is_left_out_and_that_is_said(monkeypatch):
    monkeypatch.setattr(trace_module, "MOST_PIECES", 3)
    one = trace(translator(), SOURCE, TARGET, answers=True)
    assert one.attribution is None
    assert "a side has more than 3 pieces" in one.to_json()["traces"][0]["left_out"]
    assert MOST_PIECES == 64


def test_a_server_measures_it_where_it_is_cheap():
    with serving() as client:
        answer = client.post({"text": SOURCE, "target": TARGET}).json()
    assert answer["traces"][0]["attribution"] is not None
    one = attributed(trace(translator(), SOURCE, TARGET), 1)
    assert one.attribution is None
    assert "it takes long with this model" in one.to_json()["traces"][0]["left_out"]


# ---- models beside


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two runs with tokenizers of their own; the second's first checkpoint too."""
    found = []
    for name, pairs in (("one", 200), ("two", 120)):
        folder = tmp_path_factory.mktemp(name)
        source, target = reversals(folder, pairs=pairs)
        text = ["--source", str(source), "--target", str(target), "--out", str(folder / name)]
        made = transduce("train", *text, *SMALL_OPTIONS, "--threads", "1")
        assert made.status == 0, made.errors
        found.append(folder / name)
    return [*found, min((found[1] / "checkpoints").iterdir())]


def test_other_models_stand_beside_with_the_same_sentences(models, tmp_path):
    out, page = tmp_path / "trace.json", tmp_path / "trace.html"
    first, *others = models
    beside = [word for each in others for word in ("--beside", str(each))]
    files = ["--json", out, "--html", page, "--no-model-inside"]
    found = transduce("trace", first, "a b c", "", *files, *beside)
    assert found.status == 0, found.errors
    payload = contract.read(json.loads(out.read_text(encoding="utf-8")))
    assert payload["model"]["name"] == "one"
    assert [each["model"]["name"] for each in payload["others"]] == [e.name for e in others]
    for folder, other in zip(others, payload["others"], strict=True):
        full, blank = other["traces"]
        assert blank["source"]["tokens"] == []
        wanted = trace(Translator.load(folder), "a b c")
        assert full["output"]["log_probs"] == pytest.approx(wanted.output.log_probs, abs=1e-5)
        weights = {n: x for n, x in wanted.tensors.items() if n.endswith(".weights")}
        assert full["tensors"].keys() == weights.keys()
        for name, tensor in weights.items():
            assert np.allclose(decoded(full["tensors"][name]), tensor.numpy(), atol=1e-6)
        assert "to be compared" in full["left_out"]
    assert json.loads(stored(page.read_text(encoding="utf-8"), "payload")) == payload


def test_beside_is_refused_where_it_would_be_lost(models, tmp_path):
    first, other, _ = models
    assert "add --html or --json FILE" in refused("trace", first, "a", "--beside", other)
    page = tmp_path / "x.html"
    assert "no such model" in refused(
        "trace", first, "a", "--html", page, "--beside", tmp_path / "n"
    )
    assert not page.exists()


def test_a_trace_is_saved_with_others_beside_it(tmp_path):
    one = trace(translator(), SOURCE, TARGET)
    again = copy.copy(one)
    one.save_html(tmp_path / "x.html", beside=[again])
    text = (tmp_path / "x.html").read_text(encoding="utf-8")
    (other,) = contract.read(json.loads(stored(text, "payload")))["others"]
    assert other["traces"][0]["source"]["tokens"][-1]["id"] == EOS
