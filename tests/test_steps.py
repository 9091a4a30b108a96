"""The steps of a model: all of them, in order, each with its formula's own result and its line."""

import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from tracing import DECODER_INPUT, SETTINGS, SOURCE, make, pair

from transduce.model import transformer
from transduce.trace.record import heads_off, record
from transduce.trace.steps import INPUTS, Step, attentions, names, steps

ATTENTION = ["query", "key", "value", "scores", "weights", "heads", "output"]
FEED_FORWARD = ["inner", "activation", "outer"]
POST = {
    "encoder.0": [
        *(f"self_attention.{leaf}" for leaf in ATTENTION),
        *("self_attention_residual.sum", "self_attention_residual.norm"),
        *(f"feed_forward.{leaf}" for leaf in FEED_FORWARD),
        *("feed_forward_residual.sum", "feed_forward_residual.norm"),
    ],
    "decoder.0": [
        *(f"self_attention.{leaf}" for leaf in ATTENTION),
        *("self_attention_residual.sum", "self_attention_residual.norm"),
        *(f"cross_attention.{leaf}" for leaf in ATTENTION),
        *("cross_attention_residual.sum", "cross_attention_residual.norm"),
        *(f"feed_forward.{leaf}" for leaf in FEED_FORWARD),
        *("feed_forward_residual.sum", "feed_forward_residual.norm"),
    ],
}
PRE = {
    "encoder.0": [
        "self_attention_residual.norm",
        *(f"self_attention.{leaf}" for leaf in ATTENTION),
        *("self_attention_residual.sum", "feed_forward_residual.norm"),
        *(f"feed_forward.{leaf}" for leaf in FEED_FORWARD),
        "feed_forward_residual.sum",
    ],
    "decoder.0": [
        "self_attention_residual.norm",
        *(f"self_attention.{leaf}" for leaf in ATTENTION),
        *("self_attention_residual.sum", "cross_attention_residual.norm"),
        *(f"cross_attention.{leaf}" for leaf in ATTENTION),
        *("cross_attention_residual.sum", "feed_forward_residual.norm"),
        *(f"feed_forward.{leaf}" for leaf in FEED_FORWARD),
        "feed_forward_residual.sum",
    ],
}


def recorded(model: nn.Module, source: Tensor = SOURCE, target: Tensor = DECODER_INPUT):
    with torch.no_grad(), record(model) as tape:
        model(source, target)
    return tape


@pytest.mark.parametrize(("norm", "layers"), [("post", POST), ("pre", PRE)])
@pytest.mark.parametrize("tie", ["all", "decoder", "none"])
def test_a_model_has_these_names_in_this_order(norm, layers, tie):
    model = make(norm=norm, tie=tie, encoder_layers=1, decoder_layers=1)
    assert names(model) == [
        *("source", "decoder_input", "source_mask", "target_mask"),
        *("source_embedding.table", "source_embedding.positions", "source_embedding"),
        *(f"encoder.0.{leaf}" for leaf in layers["encoder.0"]),
        "encoder_norm",
        *("target_embedding.table", "target_embedding.positions", "target_embedding"),
        *(f"decoder.0.{leaf}" for leaf in layers["decoder.0"]),
        *("decoder_norm", "output"),
    ]


def test_the_three_patterns_have_their_blocks():
    assert attentions(make(encoder_layers=2, decoder_layers=1)) == {
        "encoder.0.self_attention": "encoder_self",
        "encoder.1.self_attention": "encoder_self",
        "decoder.0.self_attention": "decoder_self",
        "decoder.0.cross_attention": "cross",
    }


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_each_step_uses_what_came_before_and_all_is_used(settings):
    known, used = set(INPUTS), set()
    for step in steps(make(**settings)):
        assert set(step.inputs) <= known, step.name
        assert step.name not in known
        assert step.formula
        known.add(step.name)
        used.update(step.inputs)
    assert known - used == {"output"}


def test_formulas_of_the_paper():
    found = {step.name: step.formula for step in steps(make())}
    cross = "decoder.1.cross_attention"
    assert found[f"{cross}.query"] == "x W_Q + b_Q"
    assert found[f"{cross}.key"] == "memory W_K + b_K"
    assert found[f"{cross}.scores"] == "q kᵀ / √d_k"
    assert found[f"{cross}.weights"] == "softmax(scores, where allowed)"
    assert found[f"{cross}_residual.norm"] == "LayerNorm(x + attention)"
    assert found["decoder.1.feed_forward.activation"] == "max(0, x)"
    pre = {step.name: step.formula for step in steps(make(norm="pre", activation="gelu"))}
    assert pre[f"{cross}_residual.norm"] == "LayerNorm(x)"
    assert pre[f"{cross}_residual.sum"] == "x + attention"
    assert pre["decoder.1.feed_forward.activation"] == "x Φ(x)"


# (a) the line of code


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_the_line_is_the_one_that_runs_when_the_value_is_made(settings):
    """PyTorch calls a module's hooks while the line that calls the module is on the stack."""
    model = make(**settings)
    running: dict[str, str] = {}

    def note(name: str) -> None:
        frame = sys._getframe(2)
        while frame.f_code.co_filename != transformer.__file__:
            frame = frame.f_back
        running[name] = f"transformer.py:{frame.f_lineno}"

    expected = {}
    for step in steps(model):
        path, _, leaf = step.name.rpartition(".")
        if leaf == "sum":  # of post-norm: what enters the norm
            module = model.get_submodule(path).norm
            hook = module.register_forward_pre_hook
            if settings.get("norm") == "pre":  # no module of its own: on the line of the norm
                hook = module.register_forward_hook
        elif leaf in ("positions", "source_embedding", "target_embedding"):
            continue
        else:
            hook = model.get_submodule(step.name).register_forward_hook
        hook(lambda *arguments, name=step.name: note(name))
        expected[step.name] = step.code
    with torch.no_grad():
        model(SOURCE, DECODER_INPUT)
    assert running == expected


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_the_line_says_what_it_computes(settings):
    lines = Path(transformer.__file__).read_text(encoding="utf-8").splitlines()
    for step in steps(make(**settings)):
        file, _, number = step.code.partition(":")
        assert file == "transformer.py"
        line = lines[int(number) - 1]
        if step.name in ("source_embedding", "target_embedding"):
            assert "self.table(ids) * self.scale + positions" in line
        elif step.name.endswith(".sum"):
            assert "x + self.dropout(sublayer(" in line
        elif step.name.endswith(".positions"):
            assert "positions = self.positions[" in line
        else:
            assert f"self.{step.name.rpartition('.')[2]}(" in line


# (b) the replay


def arrays(tape) -> dict[str, np.ndarray]:
    return {name: tensor.numpy() for name, tensor in tape.items()}


def replayed(step: Step, values: dict[str, np.ndarray]) -> np.ndarray:
    inputs = [values[name] for name in step.inputs]
    return step.replay(*(x.astype(float) if x.dtype == np.float32 else x for x in inputs))


@pytest.mark.parametrize("shape", [(1, 1), (6, 9), (100, 97)])
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_each_step_again_by_its_formula_is_what_was_recorded(settings, shape):
    model = make(**settings)
    source, decoder_input, _ = pair(*shape)
    values = arrays(recorded(model, torch.tensor([source]), torch.tensor([decoder_input])))
    for step in steps(model):
        again, value = replayed(step, values), values[step.name]
        assert again.dtype == np.float64
        assert again.shape == value.shape, step.name
        assert np.abs(again - value).max() <= 1e-5 * max(1, np.abs(value).max()), step.name


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_a_replay_takes_padded_batches_and_single_sentences(settings):
    model = make(**settings)
    batch = arrays(recorded(model))
    for step in steps(model):
        whole = replayed(step, batch)
        np.testing.assert_allclose(whole, batch[step.name], atol=3e-5, err_msg=step.name)
        for row in (0, 1):
            single = {name: value[row] for name, value in batch.items()}
            np.testing.assert_allclose(replayed(step, single), whole[row], atol=1e-12)


def by_pytorch(model: nn.Module, step: Step, tape) -> Tensor:
    """What torch.nn.functional makes of a step's inputs, and of the module it is named after."""
    first, *others = (tape[name] for name in step.inputs)
    path, _, leaf = step.name.rpartition(".")
    if leaf in ("scores", "weights", "heads"):
        return attention_by_pytorch(model, step.name, tape)
    if leaf == "sum":
        return first + others[0]
    if leaf == "activation":
        return getattr(functional, model.config.activation)(first)
    if leaf == "positions":
        rows = model.get_submodule(path).positions[: first.shape[1]]
        return rows.expand(len(first), -1, -1)
    if leaf.endswith("_embedding"):
        return first * math.sqrt(16) + others[0]
    module = model.get_submodule(step.name)
    if isinstance(module, nn.Embedding):
        return functional.embedding(first, module.weight)
    if isinstance(module, nn.LayerNorm):
        return functional.layer_norm(first, (16,), module.weight, module.bias, module.eps)
    if isinstance(module, nn.Linear):
        joined = first.transpose(1, 2).flatten(-2) if path and leaf == "output" else first
        return functional.linear(joined, module.weight, module.bias)
    assert isinstance(module, nn.Identity)
    return first


def attention_by_pytorch(model: nn.Module, name: str, tape) -> Tensor:
    block, _, leaf = name.rpartition(".")
    q, k, v = (
        tape[f"{block}.{part}"].unflatten(-1, (model.config.heads, -1)).transpose(-3, -2)
        for part in ("query", "key", "value")
    )
    if leaf == "scores":
        return torch.einsum("bhqd,bhkd->bhqk", q, k) / math.sqrt(q.shape[-1])
    allowed = tape["source_mask"][:, None, None]
    if attentions(model)[block] == "decoder_self":
        allowed = tape["target_mask"][:, None]
    if leaf == "weights":  # the values are 1 for one key each
        v = torch.eye(k.shape[-2], dtype=torch.float64).expand(*k.shape[:2], -1, -1)
    return functional.scaled_dot_product_attention(q, k, v, attn_mask=allowed)


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_a_replay_is_what_pytorch_makes_of_the_same_inputs(settings):
    model = make(**settings).double()
    tape = recorded(model)
    for step in steps(model):
        again = step.replay(*(tape[name].numpy() for name in step.inputs))
        expected = by_pytorch(model, step, tape).detach().numpy()
        # The model's own sinusoids are float32.
        tolerance = 1e-6 if step.name.endswith(".positions") else 1e-9
        np.testing.assert_allclose(again, expected, atol=tolerance, err_msg=step.name)


def test_heads_that_are_off_are_a_part_of_the_formula():
    model = make()
    off = [("decoder.0.cross_attention", 2), ("decoder.0.cross_attention", 0)]
    with heads_off(model, off):
        values = arrays(recorded(model))
    plain = {step.name: step for step in steps(model)}
    for step in steps(model, off):
        np.testing.assert_allclose(replayed(step, values), values[step.name], atol=1e-5)
        if step.name == "decoder.0.cross_attention.heads":
            assert step.formula == "weights v, head 0, 2 set to 0"
            assert np.abs(replayed(plain[step.name], values) - values[step.name]).max() > 0.1
        else:
            assert step[:4] == plain[step.name][:4]
