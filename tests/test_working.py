"""A copy that computes in bfloat16 learns nothing itself: its model does, and in float32."""

import copy
import math

import pytest
import torch
from torch import Tensor, nn

from transduce.data.batching import Batch, collate
from transduce.model.config import TransformerConfig
from transduce.model.fused_loss import projected_loss
from transduce.model.loss import smoothed_loss
from transduce.model.transformer import Transformer
from transduce.model.working import collect_gradients, refresh, working_copy

SHAPE = {
    "source_vocab_size": 50,
    "target_vocab_size": 50,
    "d_model": 32,
    "heads": 2,
    "d_ff": 64,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "dropout": 0.0,
}
KINDS = [{}, {"tie": "decoder"}, {"tie": "none"}, {"norm": "pre"}, {"positions": "learned"}]

every_kind = pytest.mark.parametrize("changes", KINDS, ids=str)


def make(**changes: object) -> tuple[Transformer, Transformer]:
    """A model and its working copy."""
    torch.manual_seed(0)
    model = Transformer(TransformerConfig(**SHAPE | changes)).train()
    return model, working_copy(model)


def batch(seed: int) -> Batch:
    draw = torch.Generator().manual_seed(seed)

    def ids(length: int) -> list[int]:
        return torch.randint(4, 50, (length,), generator=draw).tolist()

    return collate([(ids(n), ids(n + 2)) for n in (3, 5, 8, 13)])


def backward(working: Transformer, batch: Batch) -> None:
    states = working.decode(batch.decoder_input, *working.encode(batch.source))
    projected_loss(states, working.output.weight, batch.labels, 0.1).smoothed.backward()


def gradients(model: Transformer) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@every_kind
def test_the_copy_shares_what_has_to_be_exact_and_all_else_is_bfloat16(changes: dict[str, str]):
    model, working = make(**changes)
    before = copy.deepcopy(model.state_dict())
    tables = {"source_embedding.table", "target_embedding.table", "output"}
    norms = {name for name, part in model.named_modules() if isinstance(part, nn.LayerNorm)}
    assert len(norms) == 10 + 2 * (changes.get("norm") == "pre")
    for (name, own), master in zip(working.named_parameters(), model.parameters(), strict=True):
        shared = name.rpartition(".")[0] in tables | norms
        assert (own is master) == shared, name
        assert own.dtype == (torch.float32 if shared else torch.bfloat16), name
        assert master.dtype == torch.float32
    for table in tables:
        assert working.get_submodule(table).weight is model.get_submodule(table).weight
    for name, buffer in working.named_buffers():
        assert buffer.dtype == torch.bfloat16, name
    states = working.decode(batch(1).decoder_input, *working.encode(batch(1).source))
    assert states.dtype == torch.bfloat16

    backward(working, batch(1))
    assert all(buffer.dtype == torch.float32 for buffer in model.buffers())
    assert model.state_dict().keys() == before.keys()
    for name, tensor in model.state_dict().items():
        assert tensor.dtype == torch.float32
        assert torch.equal(tensor, before[name]), name


@every_kind
def test_the_copy_takes_over_changed_weights(changes: dict[str, str]):
    model, working = make(**changes)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += torch.randn_like(parameter)
    refresh(working, model)
    for own, master in zip(working.parameters(), model.parameters(), strict=True):
        assert torch.equal(own, master.to(own.dtype))
    assert all(own.requires_grad for own in working.parameters())


def test_a_model_that_computes_itself_is_left_alone():
    model, _ = make()
    backward(model, batch(1))
    before = gradients(model)
    refresh(model, model)
    collect_gradients(model, model)
    assert all(torch.equal(before[name], p.grad) for name, p in model.named_parameters())


@every_kind
def test_the_gradients_of_micro_batches_are_added_in_float32(changes: dict[str, str]):
    def collected(*seeds: int) -> dict[str, Tensor]:
        model, working = make(**changes)
        for seed in seeds:
            backward(working, batch(seed))
            collect_gradients(working, model)
            forgotten = [own for own in working.parameters() if own.dtype == torch.bfloat16]
            assert all(own.grad is None for own in forgotten)
        found = gradients(model)
        assert found.keys() == dict(model.named_parameters()).keys()
        return found

    first, second, both = collected(1), collected(2), collected(1, 2)
    for name, total in both.items():
        assert total.dtype == torch.float32
        torch.testing.assert_close(total, first[name] + second[name], rtol=1e-5, atol=1e-6)
    finer = [not torch.equal(total, total.bfloat16().float()) for total in both.values()]
    assert all(finer)


@every_kind
def test_the_gradient_points_where_that_of_float64_does(changes: dict[str, str]):
    model, working = make(**changes)
    exact = copy.deepcopy(model).double()
    one = batch(1)
    smoothed_loss(exact(one.source, one.decoder_input), one.labels, 0.1).smoothed.backward()
    backward(working, one)
    collect_gradients(working, model)
    expected, compared = gradients(exact), 0
    for name, gradient in gradients(model).items():
        if name.endswith("key.bias"):  # it shifts all scores of a query alike: the slope is 0
            assert expected[name].norm() < 1e-10
            continue
        cosine = torch.cosine_similarity(gradient.double().flatten(), expected[name].flatten(), 0)
        assert cosine > 0.99, name
        assert gradient.norm().item() == pytest.approx(expected[name].norm().item(), rel=0.1), name
        compared += 1
    assert compared > 50


def test_a_token_that_comes_4000_times_has_the_sum_of_their_gradients():
    # A sum in bfloat16 that grows by 1 stalls at 256.
    model, working = make()
    working.source_embedding(torch.full((4, 1000), 7)).float().sum().backward()
    expected = torch.zeros(50, 32)
    expected[7] = 4000 * math.sqrt(32)
    found = model.source_embedding.table.weight.grad
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=0)


def test_a_learned_position_has_the_sum_over_all_sentences():
    model, working = make(positions="learned")
    working.source_embedding(torch.full((4000, 1), 7)).float().sum().backward()
    collect_gradients(working, model)
    found = model.source_embedding.positions.grad
    torch.testing.assert_close(found[0], torch.full((32,), 4000.0), rtol=2**-8, atol=0)
    assert (found[1:] == 0).all()


def test_a_norms_gradient_is_a_sum_over_all_positions():
    _, working = make()
    norm = working.decoder[0].feed_forward_residual.norm
    x = torch.randn(4000, 32).bfloat16().requires_grad_()
    y = norm(x)
    assert y.dtype == x.dtype
    y.sum().backward()
    assert norm.bias.grad.tolist() == [4000.0] * 32
    reference = nn.LayerNorm(32, eps=norm.eps, dtype=torch.float64)
    reference(x.double()).sum().backward()
    torch.testing.assert_close(norm.weight.grad.double(), reference.weight.grad, atol=1e-2, rtol=0)


def test_each_gradient_of_a_large_batch_is_near_that_of_float64():
    model, working = make()
    draw = torch.Generator().manual_seed(3)
    ids = torch.randint(4, 50, (2, 200, 20), generator=draw).tolist()
    large = collate(list(zip(*ids, strict=True)))
    backward(working, large)
    collect_gradients(working, model)
    found = gradients(model)
    exact = copy.deepcopy(model).double()
    exact.zero_grad()
    backward(exact, large)
    for name, expected in gradients(exact).items():
        if not name.endswith("key.bias"):  # its true gradient is 0
            error = (found[name].double() - expected).norm() / expected.norm()
            assert error < 0.05, (name, error)
