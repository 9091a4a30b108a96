"""Fast paths equal the plain ones: fused attention, and dropout on a CPU."""

import math

import pytest
import torch
from torch import Tensor

from transduce.ids import BOS, EOS, PAD
from transduce.model import transformer
from transduce.model.config import TransformerConfig
from transduce.model.kernels import Dropout, fused_attention_pays
from transduce.model.loss import smoothed_loss
from transduce.model.transformer import Transformer

SOURCE = torch.tensor([[5, 6, 7, 8, EOS], [9, 10, EOS, PAD, PAD]])
TARGET = torch.tensor([[BOS, 4, 5, 6, EOS], [BOS, 7, EOS, PAD, PAD]])


def test_fused_attention_is_the_plain_one_forward_and_backward(monkeypatch):
    torch.manual_seed(0)
    config = TransformerConfig(
        source_vocab_size=20,
        target_vocab_size=20,
        d_model=16,
        heads=4,
        d_ff=24,
        encoder_layers=2,
        decoder_layers=2,
        dropout=0.0,
    )
    model = Transformer(config)

    def run(*, fused: bool) -> tuple[Tensor, list[Tensor], int]:
        seen: list[Tensor] = []
        handle = model.decoder[0].cross_attention.weights.register_forward_hook(
            lambda module, inputs, weights: seen.append(weights)
        )
        monkeypatch.setattr(transformer, "fused_attention_pays", lambda q, k: fused)
        logits = model(SOURCE, TARGET[:, :-1])
        loss = smoothed_loss(logits, TARGET[:, 1:], 0.1).smoothed
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        handle.remove()
        return logits, list(gradients), len(seen)

    logits, gradients, maps = run(fused=False)
    fused_logits, fused_gradients, fused_maps = run(fused=True)
    assert (maps, fused_maps) == (1, 0)
    torch.testing.assert_close(fused_logits, logits, atol=1e-5, rtol=1e-5)
    for one, other in zip(fused_gradients, gradients, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


def test_which_attention_is_a_matter_of_the_length():
    short, long = torch.empty(1, 4, 30, 8), torch.empty(1, 4, 500, 8)
    assert fused_attention_pays(long, long)
    assert not fused_attention_pays(short, short)
    assert not fused_attention_pays(short[:, :, :1], long)


def train(p: float) -> Dropout:
    torch.manual_seed(0)
    return Dropout(p).train()


@pytest.mark.parametrize("p", [0.001, 0.1, 0.3, 0.5, 0.9])
def test_dropout_drops_its_share_scales_the_others_and_keeps_the_mean(p):
    n = 1_000_003  # no multiple of the lanes of a draw
    y = train(p)(torch.ones(n))
    deviation = math.sqrt(p * (1 - p) / n)
    dropped = (y == 0).double().mean().item()
    assert abs(dropped - p) < 4 * deviation + 1 / 65_536
    scale = y.max().item()
    assert scale == pytest.approx(1 / (1 - p), rel=1e-4)
    assert ((y == 0) | (y == scale)).all()
    assert abs(y.double().mean().item() - 1) < 4 * deviation * scale


def test_dropout_is_independent_from_element_to_element_and_from_call_to_call():
    dropout = train(0.5)
    first, second = dropout(torch.ones(400_000)) / 2, dropout(torch.ones(400_000)) / 2
    for one, other in [(first[:-d], first[d:]) for d in (1, 2, 3, 4, 8)] + [(first, second)]:
        both = (one * other).mean().item()
        assert abs(both - 0.25) < 4 * math.sqrt(0.25 * 0.75 / 400_000)


@pytest.mark.parametrize("shape", [(1,), (3,), (2, 5, 7), (4, 1, 16), (0, 3)])
def test_dropout_keeps_the_shape_and_type(shape):
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        y = train(0.3)(torch.ones(shape, dtype=dtype))
        assert y.shape == shape
        assert y.dtype == dtype


def test_the_gradient_passes_where_the_value_passed():
    x = torch.randn(1000, dtype=torch.float64, requires_grad=True)
    y = train(0.3)(x)
    y.sum().backward()
    torch.testing.assert_close(x.grad, y.detach() / x.detach())
    assert (x.grad == 0).any()


def test_dropout_takes_its_bits_from_the_seed():
    x = torch.ones(1000)
    assert torch.equal(train(0.3)(x), train(0.3)(x))
    dropout = train(0.3)
    assert not torch.equal(dropout(x), dropout(x))


def test_dropout_does_nothing_in_evaluation_or_at_0():
    x = torch.randn(1000)
    assert Dropout(0.3).eval()(x) is x
    state = torch.get_rng_state()
    assert Dropout(0.0).train()(x) is x
    assert torch.equal(torch.get_rng_state(), state)
