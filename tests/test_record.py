"""Recording: what is kept is what the model used, and looking changes nothing."""

import math

import jaxtyping
import pytest
import torch
from torch import Tensor
from torch.nn import functional
from tracing import DECODER_INPUT, SETTINGS, SOURCE, hooks, make, pair, without

import transduce
from transduce.decode.beam import beam_search
from transduce.decode.constraints import Constraints
from transduce.decode.greedy import greedy
from transduce.decode.stepper import ModelStepper
from transduce.errors import TraceError
from transduce.ids import EOS, PAD
from transduce.model import transformer
from transduce.model.loss import smoothed_loss
from transduce.model.transformer import Transformer
from transduce.trace.record import heads_off, record
from transduce.trace.steps import attentions, names

LABELS = torch.tensor([[4, 5, 6, EOS], [7, 8, EOS, PAD]])


def ids(s: int, t: int) -> tuple[Tensor, Tensor]:
    source, decoder_input, _ = pair(s, t)
    return torch.tensor([source]), torch.tensor([decoder_input])


def count_fused(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The queries of each call of PyTorch's fused attention from here on."""
    calls: list[int] = []
    fused = functional.scaled_dot_product_attention

    def counted(q: Tensor, *rest: Tensor, **options: Tensor) -> Tensor:
        calls.append(q.shape[-2])
        return fused(q, *rest, **options)

    monkeypatch.setattr(transformer.functional, "scaled_dot_product_attention", counted)
    return calls


# (a) looking changes nothing


@pytest.mark.parametrize("shape", [(1, 1), (7, 5), (97, 100), (140, 3)])
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@torch.no_grad()
def test_recorded_values_are_those_without_recording(settings, shape, monkeypatch):
    model = make(**settings)
    fused = count_fused(monkeypatch)
    plain = model(*ids(*shape))
    blocks = attentions(model).values()
    long = [pattern for pattern in blocks if min(shape) >= 96 or pattern == "encoder_self"]
    assert len(fused) == (len(long) if max(shape) >= 96 else 0)
    fused.clear()
    with record(model) as tape:
        recorded = model(*ids(*shape))
    assert not fused
    torch.testing.assert_close(recorded, plain, atol=1e-5, rtol=1e-5)
    assert torch.equal(tape["output"], recorded)
    assert list(tape) == names(model)


@torch.no_grad()
def test_who_reads_no_attention_leaves_the_fused_kernel(monkeypatch):
    model = make()
    fused = count_fused(monkeypatch)
    with record(model, "*_norm", "decoder.*.feed_forward.*", "*.query"):
        model(*ids(100, 100))
    assert len(fused) == 6
    fused.clear()
    with record(model, "decoder.1.cross_attention.heads") as tape:
        model(*ids(100, 100))
    assert len(fused) == 5
    assert list(tape) == ["decoder.1.cross_attention.heads"]


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_a_recorded_search_finds_the_same_tokens(settings):
    model = make(**settings)
    source = torch.tensor([pair(s, 1, seed=s)[0] + [PAD] * (120 - s) for s in (120, 3, 40)])

    def search() -> list:
        found = [greedy(ModelStepper(model, source, width=1, capacity=20), limits(), alpha=0.6)]
        stepper = ModelStepper(model, source, width=4, capacity=20)
        found += beam_search(stepper, limits(), beam=4, alpha=0.6, n_best=4)
        return found

    def limits() -> Constraints:
        return Constraints([20, 5, 12])

    plain = search()
    with record(model) as tape:
        recorded = search()
    assert [[one.tokens for one in some] for some in recorded] == [
        [one.tokens for one in some] for some in plain
    ]
    assert len(tape.calls("output")) == len(tape.calls("decoder.0.cross_attention.weights")) > 6


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_training_is_recorded_with_the_same_dropout_and_gradients(settings):
    model = make(**settings, dropout=0.3).train()

    def gradients() -> list[Tensor]:
        torch.manual_seed(7)
        loss = smoothed_loss(model(SOURCE, DECODER_INPUT), LABELS, 0.1).smoothed
        return list(torch.autograd.grad(loss, list(model.parameters())))

    plain = gradients()
    with record(model) as tape:
        recorded = gradients()
    assert model.training
    for one, other in zip(recorded, plain, strict=True):
        torch.testing.assert_close(one, other)
    assert not any(tensor.requires_grad for tensor in tape.values())


# (b) what is kept is real


@pytest.mark.parametrize("name", ["scores", "weights", "heads"])
@torch.no_grad()
def test_what_a_hook_returns_is_what_the_model_uses(name):
    model = make()
    block = model.decoder[1].cross_attention

    def change(module: torch.nn.Module, inputs: tuple, output: Tensor) -> Tensor:
        return torch.zeros_like(output)

    handle = getattr(block, name).register_forward_hook(change)
    x, memory = torch.randn(1, 3, 16), torch.randn(1, 5, 16)
    found = block(x, memory, None)
    handle.remove()
    mean = block.output(block.value(memory).mean(1, keepdim=True).expand(1, 3, 16))
    expected = mean if name == "scores" else block.output.bias.expand(1, 3, 16)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("name", ["scores", "weights", "heads"])
@pytest.mark.parametrize("kind", ["forward", "forward_pre", "full_backward"])
@torch.no_grad()
def test_any_hook_on_what_is_not_shown_stops_the_fused_kernel(name, kind, monkeypatch):
    model = make()
    fused = count_fused(monkeypatch)
    module = getattr(model.encoder[0].self_attention, name)
    getattr(module, f"register_{kind}_hook")(lambda *arguments: None)
    model.encode(ids(100, 1)[0])
    assert len(fused) == 1  # the other layer's


@pytest.mark.parametrize("tie", ["all", "decoder", "none"])
@torch.no_grad()
def test_each_side_has_its_own_embedding_whoever_has_the_table(tie):
    model = make(tie=tie)
    with record(model) as tape:
        model(SOURCE, DECODER_INPUT)
    for side, fed in (("source", SOURCE), ("target", DECODER_INPUT)):
        embedding = model.get_submodule(f"{side}_embedding")
        rows = tape[f"{side}_embedding.table"]
        assert torch.equal(rows, embedding.table.weight[fed])
        positions = tape[f"{side}_embedding.positions"]
        assert torch.equal(positions, embedding.positions[: fed.shape[1]].expand_as(rows))
        torch.testing.assert_close(tape[f"{side}_embedding"], math.sqrt(16) * rows + positions)


@torch.no_grad()
def test_inputs_are_those_of_the_call():
    model = make()
    with record(model, "source*", "decoder_input", "target_mask") as tape:
        model(SOURCE, DECODER_INPUT)
    assert torch.equal(tape["source"], SOURCE)
    assert torch.equal(tape["decoder_input"], DECODER_INPUT)
    assert tape["source_mask"].tolist() == [[True] * 5, [True] * 3 + [False] * 2]
    causal = [[True, False, False, False], [True, True, False, False], [True, True, True, False]]
    assert tape["target_mask"].tolist() == [[*causal, [True] * 4], [*causal, causal[2]]]


@pytest.mark.parametrize("norm", ["post", "pre"])
@torch.no_grad()
def test_the_residual_path_is_the_sum_of_what_is_recorded(norm):
    model = make(norm=norm)
    with record(model) as tape:
        memory, _ = model.encode(SOURCE)
    x = tape["source_embedding"]
    for layer in ("encoder.0", "encoder.1"):
        for part, last in (("self_attention", "output"), ("feed_forward", "outer")):
            added = x + tape[f"{layer}.{part}.{last}"]
            torch.testing.assert_close(tape[f"{layer}.{part}_residual.sum"], added)
            x = tape[f"{layer}.{part}_residual.{'sum' if norm == 'pre' else 'norm'}"]
    assert torch.equal(tape["encoder_norm"], memory)
    torch.testing.assert_close(model.encoder_norm(x), memory)


@torch.no_grad()
def test_a_tape_is_not_changed_by_what_happens_later():
    model = make(positions="learned")
    with record(model) as tape:
        logits = model(SOURCE, DECODER_INPUT)
    before = {name: tensor.clone() for name, tensor in tape.items()}
    logits.zero_()
    for parameter in model.parameters():
        parameter.zero_()
    model(SOURCE, DECODER_INPUT)  # no longer recorded
    for name, tensor in before.items():
        assert torch.equal(tape[name], tensor)
        assert len(tape.calls(name)) == 1


@torch.no_grad()
def test_all_calls_are_kept_one_a_step_in_decoding():
    model = make()
    source, decoder_input = ids(6, 5)
    with record(model) as whole:
        model(source, decoder_input)
    with record(model, "decoder.*", "target_embedding*", "output") as tape:
        cache = model.start(*model.encode(source), width=1, capacity=5)
        for token in decoder_input[0]:
            model.step(token[None], cache)
    for name in tape:
        calls = tape.calls(name)
        of_memory = name.endswith(("cross_attention.key", "cross_attention.value"))
        assert len(calls) == (1 if of_memory else 5)
        assert torch.equal(tape[name], calls[-1])
        if not name.endswith(("self_attention.weights", "self_attention.scores")):
            dimension = 2 if name.rpartition(".")[2] in ("scores", "weights", "heads") else 1
            joined = torch.cat(calls, dim=dimension)
            torch.testing.assert_close(joined, whole[name], atol=1e-5, rtol=1e-5)


# (c) names, and hooks that go again


@torch.no_grad()
def test_a_tape_has_what_fits_in_the_order_of_computation():
    model = make()
    with record(model, "output", "encoder.?.self_attention.weights", "source") as tape:
        assert len(tape) == 0
        with pytest.raises(KeyError, match="output"):
            tape["output"]
        model(SOURCE, DECODER_INPUT)
    expected = [f"encoder.{i}.self_attention.weights" for i in (0, 1)]
    assert list(tape) == ["source", *expected, "output"]
    assert len(tape) == 4
    with pytest.raises(KeyError):
        tape["encoder_norm"]


def test_a_pattern_that_fits_nothing_is_told_with_the_nearest_name():
    model = make()
    message = (
        r"'decoder.0.cros_attention.weight'; did you mean 'decoder.0.cross_attention.weights'\?"
    )
    with (
        pytest.raises(TraceError, match=message),
        record(model, "output", "decoder.0.cros_attention.weight"),
    ):
        pass
    assert hooks(model) == 0


def test_hooks_go_whatever_happens_and_recorders_nest():
    model = make()
    with record(model, "output") as outer, torch.no_grad():
        with record(model) as inner:
            model(SOURCE, DECODER_INPUT)
        model(SOURCE, DECODER_INPUT)
    assert len(inner.calls("output")) == 1
    assert len(outer.calls("output")) == 2
    assert hooks(model) == 0
    with pytest.raises(ValueError, match="mine"), record(model), heads_off(model, [BLOCK_HEAD]):
        raise ValueError("mine")
    assert hooks(model) == 0


def test_record_is_public():
    assert transduce.record is record


# (d) heads that are off

BLOCK_HEAD = ("decoder.0.cross_attention", 2)
OFF = [BLOCK_HEAD, ("encoder.1.self_attention", 0), ("decoder.1.self_attention", 3)]


OFF_SETTINGS = [name for name in SETTINGS if name != "tensor2tensor"]  # it has one head


@pytest.mark.parametrize("name", OFF_SETTINGS)
@pytest.mark.parametrize("shape", [(6, 4), (100, 100)])
@torch.no_grad()
def test_a_head_that_is_off_is_a_head_that_w_o_does_not_read(name, shape):
    model, expected = make(**SETTINGS[name]), without(make(**SETTINGS[name]), OFF)
    plain = model(*ids(*shape))
    with heads_off(model, OFF):
        found = model(*ids(*shape))
    torch.testing.assert_close(found, expected(*ids(*shape)), atol=1e-5, rtol=1e-5)
    assert (found - plain).abs().max() > 1e-3
    assert torch.equal(model(*ids(*shape)), plain)


@pytest.mark.parametrize("name", OFF_SETTINGS)
def test_heads_are_off_in_search_too_all_beams_of_all_sentences(name):
    model, expected = make(**SETTINGS[name]), without(make(**SETTINGS[name]), OFF)
    source = torch.tensor([pair(s, 1, seed=s)[0] + [PAD] * (9 - s) for s in (9, 3, 6)])

    def search(model: Transformer) -> list[list[float]]:
        stepper = ModelStepper(model, source, width=4, capacity=12)
        found = beam_search(stepper, Constraints([12, 7, 9]), beam=4, alpha=0.6, n_best=4)
        stepper = ModelStepper(model, source, width=1, capacity=12)
        found += [greedy(stepper, Constraints([12, 7, 9]), alpha=0.6)]
        return [[*one.tokens, one.log_prob] for some in found for one in some]

    plain = search(model)
    with heads_off(model, OFF):
        found = search(model)
    assert [one[:-1] for one in found] == [one[:-1] for one in search(expected)]
    assert [one[-1] for one in found] == pytest.approx(
        [one[-1] for one in search(expected)], abs=1e-4
    )
    assert found != plain


@torch.no_grad()
def test_a_recorder_sees_heads_that_are_off_wherever_it_stands():
    model = make()
    name = "decoder.0.cross_attention.heads"
    with record(model, name) as outer, heads_off(model, OFF), record(model, name) as inner:
        model(SOURCE, DECODER_INPUT)
    assert torch.equal(outer[name], inner[name])
    assert (outer[name][:, 2] == 0).all()
    assert (outer[name][:, [0, 1, 3]] != 0).all()


@pytest.mark.parametrize(
    ("off", "message"),
    [
        (("decoder.0.attention", 0), "no attention 'decoder.0.attention'; did you mean"),
        (("decoder.2.cross_attention", 0), "did you mean 'decoder.[01].cross_attention'"),
        (("decoder.0.cross_attention", 4), "no head 4; its heads are 0 to 3"),
        (("decoder.0.cross_attention", -1), "no head -1"),
    ],
)
def test_heads_that_do_not_exist_are_told(off, message):
    model = make()
    with pytest.raises(TraceError, match=message), heads_off(model, [OFF[0], off]):
        pass
    assert hooks(model) == 0


@pytest.mark.parametrize("hooked", [record, lambda model: heads_off(model, [])])
def test_what_would_run_past_hooks_is_refused(hooked, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    compiled = make()
    compiled.compile(backend="eager")
    wrapped = torch.nn.DataParallel(make())
    for model in (compiled, wrapped, torch.compile(make(), backend="eager"), None):
        with pytest.raises(TraceError, match="hooks"), hooked(model):
            pass
