"""Invariants: green on every healthy model and shape, red on each trace that lies."""

import math
from functools import cache

import pytest
import torch
from torch import Tensor
from tracing import SETTINGS, make, pair

from transduce.errors import AttentionError, TraceError
from transduce.ids import EOS
from transduce.model.transformer import Transformer
from transduce.trace.invariants import Invariant, check
from transduce.trace.observe import Recorded, observe
from transduce.trace.steps import attentions, names

IDS = [
    *("axes", "rows_sum_1", "causal_zero", "pad_zero", "batched_equals_single"),
    *("incremental_equals_teacher", "replay", "search_equals_forced"),
]
CROSS = "decoder.1.cross_attention.weights"
DECODER_SELF = "decoder.0.self_attention.weights"
ENCODER_SELF = "encoder.1.self_attention.weights"


@cache
def healthy(s: int = 7, t: int = 5) -> tuple[Transformer, Recorded]:
    model = make()
    return model, observe(model, *pair(s, t))


def red(model: Transformer, seen: Recorded) -> set[str]:
    return {found.id for found in check(model, seen) if not found.ok}


def changed(tape, name: str, tensor: Tensor) -> dict[str, Tensor]:
    return {**tape, name: tensor}


def with_one(tensor: Tensor, value: object, place: int = 0) -> Tensor:
    tensor = tensor.clone()
    tensor.view(-1)[place] = value
    return tensor


def by_id(invariants: list[Invariant]) -> dict[str, Invariant]:
    return {found.id: found for found in invariants}


# (a) green


@pytest.mark.parametrize(
    ("setting", "s", "t"),
    [
        *[(setting, *shape) for setting in SETTINGS for shape in ((1, 1), (5, 5), (40, 40))],
        *[("paper", 1, 6), ("learned", 6, 1), ("pre-norm", 100, 97), ("paper", 149, 150)],
    ],
)
def test_all_is_green_on_healthy_models_of_every_setting_and_shape(setting, s, t):
    model = make(**SETTINGS[setting])
    source, decoder_input, labels = pair(s, t)
    seen = observe(model, source, decoder_input, labels)
    logits = model(torch.tensor([source]), torch.tensor([decoder_input]))[0].detach()
    log_probs = logits.log_softmax(-1)
    forced = sum(float(row[label]) for row, label in zip(log_probs, labels, strict=True))
    found = check(model, seen._replace(search_log_prob=forced))
    assert [one.id for one in found] == IDS
    assert all(one.ok for one in found), found
    assert all(one.label.endswith(".") for one in found)
    p = seen.padding
    assert p == min(3, 150 - max(s, t))
    layers = (model.config.encoder_layers, model.config.decoder_layers)
    h = model.config.heads
    checked = {one.id: one.checked for one in found}
    rows = [h * (layers[0] * n + 2 * layers[1] * m) for n, m in ((s, t), (s + p, t + p))]
    assert checked["rows_sum_1"] == sum(rows) + 2 * layers[1] * h * t
    assert checked["causal_zero"] == layers[1] * h * (t * (t - 1) + (t + p) * (t + p - 1) // 2)
    assert checked["pad_zero"] == h * p * (layers[0] * (s + p) + 2 * layers[1] * (t + p))
    assert checked["search_equals_forced"] == 1
    assert checked["replay"] == sum(tensor.numel() for tensor in seen.tape.values()) - s - t
    for one in found:
        assert (one.worst is None) == (one.checked == 0)
        if one.worst is not None:
            assert 0 <= one.worst <= one.tolerance


@pytest.mark.parametrize("settings", [SETTINGS["paper"], SETTINGS["pre-norm"]])
def test_all_is_green_with_heads_off_and_they_are_off_in_all_three_passes(settings):
    model = make(**settings)
    off = [("decoder.0.cross_attention", 1), ("encoder.0.self_attention", 3)]
    seen = observe(model, *pair(7, 5), off=off)
    assert red(model, seen) == set()
    assert (seen.tape["decoder.0.cross_attention.heads"][:, 1] == 0).all()
    plain = observe(model, *pair(7, 5))
    for of_it, of_plain in ((seen.padded, plain.padded), (seen.cached, plain.cached)):
        assert not torch.allclose(of_it["output"], of_plain["output"], atol=1e-3)
    assert red(model, seen._replace(off=())) == {"replay"}
    assert red(model, plain._replace(off=tuple(off))) == {"replay"}


def test_what_was_not_searched_has_nothing_to_check():
    model, seen = healthy(1, 1)
    found = by_id(check(model, seen))["search_equals_forced"]
    assert (found.ok, found.checked, found.worst) == (True, 0, None)
    assert by_id(check(model, seen))["causal_zero"].checked > 0  # beside a longer pair


# (b) observing


def test_observing_leaves_the_mode_and_runs_without_dropout():
    model = make(dropout=0.5).train()
    seen = observe(model, *pair(7, 5))
    assert model.training
    assert red(model, seen) == set()
    with pytest.raises(AttentionError, match="over max_length"):
        observe(model, *pair(151, 5))
    with pytest.raises(TraceError, match="no head 9"):
        observe(model, *pair(7, 5), off=[("encoder.0.self_attention", 9)])
    assert model.training


def test_three_passes_have_what_they_say():
    model, seen = healthy()
    assert list(seen.tape) == names(model)
    source, decoder_input, labels = pair(7, 5)
    assert (seen.source, seen.decoder_input, seen.labels) == (source, decoder_input, labels)
    maps = [f"{name}.weights" for name in attentions(model)]
    assert set(seen.padded) == {*maps, "encoder_norm", "output"}
    assert set(seen.cached) == {"output", *(name for name in maps if name.startswith("decoder"))}
    assert seen.padded[ENCODER_SELF].shape == (1, 4, 10, 10)
    assert seen.padded[CROSS].shape == (1, 4, 8, 10)
    assert seen.padded[DECODER_SELF].shape == (1, 4, 8, 8)
    assert seen.cached[CROSS].shape == (1, 4, 5, 7)
    assert (seen.cached[DECODER_SELF][0, 0].triu(1) == 0).all()
    # They were passes of their own: not the same numbers to the last bit, all of them.
    assert not all(torch.equal(seen.cached[n], seen.tape[n]) for n in seen.cached)


# (c) red: a trace that was changed


@pytest.mark.parametrize(("s", "t"), [(7, 5), (5, 5)])
def test_a_transposed_map_is_red(s, t):
    model, seen = healthy(s, t)
    broken = changed(seen.tape, CROSS, seen.tape[CROSS].mT)
    found = red(model, seen._replace(tape=broken))
    assert {"rows_sum_1", "replay", "incremental_equals_teacher"} <= found
    assert ("axes" in found) == (s != t)
    assert "rows_sum_1" in red(
        model, seen._replace(padded=changed(seen.padded, CROSS, seen.padded[CROSS].mT))
    )
    assert "rows_sum_1" in red(
        model, seen._replace(cached=changed(seen.cached, CROSS, seen.cached[CROSS].mT))
    )


@pytest.mark.parametrize(("s", "t"), [(7, 5), (5, 5)])
def test_tokens_of_the_other_side_are_red(s, t):
    model, seen = healthy(s, t)
    assert "axes" in red(model, seen._replace(source=seen.labels))
    assert "axes" in red(model, seen._replace(decoder_input=seen.source, labels=seen.source))
    assert "axes" in red(model, seen._replace(decoder_input=seen.labels))
    assert "axes" in red(model, seen._replace(labels=seen.decoder_input))
    assert "axes" in red(model, seen._replace(source=seen.source[:-1]))
    assert "axes" in red(model, seen._replace(labels=seen.labels[:-1]))
    assert "axes" in red(model, seen._replace(decoder_input=[EOS, *seen.decoder_input[1:]]))
    swapped = [seen.source[1], seen.source[0], *seen.source[2:]]
    assert red(model, seen._replace(source=swapped)) == {"axes"}


def test_rows_that_are_not_normalised_are_red():
    model, seen = healthy()
    for block in attentions(model):
        name = f"{block}.weights"
        broken = changed(seen.tape, name, seen.tape[name] * 1.001)
        assert {"rows_sum_1", "replay"} <= red(model, seen._replace(tape=broken))


@pytest.mark.parametrize("weight", [1e-30, 0.3])
def test_any_weight_on_the_future_is_red(weight):
    model, seen = healthy()
    leaked = with_one(seen.tape[DECODER_SELF], weight, place=1)  # query 0, key 1
    assert "causal_zero" in red(model, seen._replace(tape=changed(seen.tape, DECODER_SELF, leaked)))
    leaked = with_one(seen.cached[DECODER_SELF], weight, place=4)
    broken = changed(seen.cached, DECODER_SELF, leaked)
    assert "causal_zero" in red(model, seen._replace(cached=broken))


@pytest.mark.parametrize("name", [CROSS, ENCODER_SELF, DECODER_SELF])
@pytest.mark.parametrize("weight", [1e-30, 0.3])
def test_any_weight_on_padding_is_red(name, weight):
    model, seen = healthy()
    padded = seen.padded[name].clone()
    padded[0, 2, -1, -1] = weight
    assert "pad_zero" in red(model, seen._replace(padded=changed(seen.padded, name, padded)))


@pytest.mark.parametrize("tape", ["tape", "padded", "cached"])
def test_what_is_no_number_is_red_anywhere(tape):
    model = make(encoder_layers=1, decoder_layers=1)
    seen = observe(model, *pair(7, 5))
    recorded = getattr(seen, tape)
    for i, (name, tensor) in enumerate(recorded.items()):
        if tensor.is_floating_point():
            value = [math.nan, math.nan, math.inf, -math.inf][i % 4]
            broken = changed(recorded, name, with_one(tensor, value, 7 * i % tensor.numel()))
            assert red(model, seen._replace(**{tape: broken})), name


def test_what_is_no_number_has_no_worst():
    model, seen = healthy()
    broken = changed(seen.tape, CROSS, with_one(seen.tape[CROSS], math.nan))
    found = by_id(check(model, seen._replace(tape=broken, search_log_prob=math.nan)))
    for id in ("rows_sum_1", "replay", "incremental_equals_teacher", "search_equals_forced"):
        assert (found[id].ok, found[id].worst) == (False, None)


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_one_changed_number_anywhere_is_red_in_the_replay(settings):
    model = make(**{**settings, "encoder_layers": 1, "decoder_layers": 1})
    seen = observe(model, *pair(6, 4))
    assert len(seen.tape) == len(names(model))
    for i, (name, tensor) in enumerate(seen.tape.items()):
        place = 7 * i % tensor.numel()
        old = tensor.view(-1)[place]
        if tensor.is_floating_point():
            new = float(old) + 1e-3 * max(1, float(tensor.abs().max()))
        else:
            new = not old if tensor.dtype == torch.bool else 9 + int(old == 9)
        broken = changed(seen.tape, name, with_one(tensor, new, place))
        assert "replay" in red(model, seen._replace(tape=broken)), (name, place)


@pytest.mark.parametrize("tape", ["padded", "cached"])
def test_one_changed_number_of_the_other_passes_is_red(tape):
    model, seen = healthy()
    recorded = getattr(seen, tape)
    for name, tensor in recorded.items():
        scale = max(1, float(tensor.abs().max()))
        broken = changed(recorded, name, with_one(tensor, float(tensor.view(-1)[0]) + 1e-3 * scale))
        expected = {"padded": "batched_equals_single", "cached": "incremental_equals_teacher"}[tape]
        assert expected in red(model, seen._replace(**{tape: broken})), name


@pytest.mark.parametrize("by", [0.01, -0.01])
def test_a_search_that_says_another_log_probability_is_red(by):
    model, seen = healthy()
    logits = seen.tape["output"][0].double().log_softmax(-1)
    forced = float(logits[torch.arange(5), seen.labels].sum())
    assert red(model, seen._replace(search_log_prob=forced)) == set()
    assert red(model, seen._replace(search_log_prob=forced + by * -forced)) == {
        "search_equals_forced"
    }
    # Another token of the same trace.
    other = [*seen.labels[:-1], 7]
    assert red(model, seen._replace(search_log_prob=forced, labels=other)) == {
        "search_equals_forced"
    }


def test_a_trace_of_another_model_is_red():
    _, seen = healthy()
    with torch.no_grad():
        other = make()
        other.encoder[0].feed_forward.outer.bias[3] += 0.01
    assert red(other, seen) == {"replay"}


# (d) red: a model that is broken


def test_a_model_that_sees_the_future_is_red(monkeypatch):
    model = make()
    monkeypatch.setattr(Tensor, "tril", lambda x, *arguments: x)
    seen = observe(model, *pair(7, 5))
    monkeypatch.undo()
    assert seen.tape["target_mask"].all()
    assert {"causal_zero", "incremental_equals_teacher", "replay"} <= red(model, seen)


def unmasked(module: torch.nn.Module, place: int) -> None:
    """Let a layer run without the mask that it gets at this place."""

    def everywhere(_: torch.nn.Module, inputs: tuple) -> tuple:
        return (*inputs[:place], torch.ones_like(inputs[place]), *inputs[place + 1 :])

    module.register_forward_pre_hook(everywhere)


@pytest.mark.parametrize(
    ("layer", "place", "expected"),
    [
        ("encoder.1", 1, {"pad_zero", "batched_equals_single"}),
        ("decoder.1", 3, {"pad_zero", "batched_equals_single"}),
        ("decoder.1", 2, {"pad_zero", "causal_zero", "incremental_equals_teacher", "replay"}),
    ],
)
def test_a_layer_without_its_mask_is_red(layer, place, expected):
    model = make()
    unmasked(model.get_submodule(layer), place)
    assert expected <= red(model, observe(model, *pair(7, 5)))


def test_a_cache_that_forgets_is_red(monkeypatch):
    model = make()
    step = Transformer.step

    def forgetful(model: Transformer, tokens: Tensor, cache) -> Tensor:
        cache.keys[..., :1, :] = 0
        return step(model, tokens, cache)

    monkeypatch.setattr(Transformer, "step", forgetful)
    found = red(model, observe(model, *pair(7, 5)))
    assert found == {"incremental_equals_teacher"}


def test_weights_that_are_shown_and_not_used_are_red():
    """A head mixes by other weights than those that a recorder is given."""
    model = make()
    block = model.decoder[0].cross_attention

    def reversed_keys(_: torch.nn.Module, inputs: tuple, output: Tensor) -> Tensor:
        return output.flip(-2)

    block.heads.register_forward_hook(reversed_keys)
    assert "replay" in red(model, observe(model, *pair(7, 5)))


def test_a_tape_that_lacks_a_name_is_a_bug():
    model, seen = healthy()
    fewer = {name: tensor for name, tensor in seen.tape.items() if name != "encoder_norm"}
    with pytest.raises(AssertionError, match="encoder_norm"):
        check(model, seen._replace(tape=fewer))
