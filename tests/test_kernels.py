"""Fast paths equal the plain ones: products, fused attention, and dropout on a CPU."""

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from transduce.ids import BOS, EOS, PAD
from transduce.model import kernels, transformer
from transduce.model.config import TransformerConfig
from transduce.model.kernels import (
    Dropout,
    Linear,
    fused_attention_pays,
    gradient_of_weight,
    onednn_pays,
    product,
)
from transduce.model.loss import smoothed_loss
from transduce.model.transformer import Transformer, attend, distribution

SOURCE = torch.tensor([[5, 6, 7, 8, EOS], [9, 10, EOS, PAD, PAD]])
TARGET = torch.tensor([[BOS, 4, 5, 6, EOS], [BOS, 7, EOS, PAD, PAD]])

needs_onednn = pytest.mark.skipif(
    not hasattr(torch.ops.mkldnn, "_linear_pointwise"), reason="this PyTorch has no oneDNN"
)


@pytest.fixture
def by_onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "onednn_pays", lambda: True)


class Operations(TorchDispatchMode):
    """Notes what PyTorch is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, function, types, arguments=(), named=None):
        self.names.add(str(function))
        return function(*arguments, **(named or {}))

    def onednn(self) -> bool:
        return any(name.startswith("mkldnn._linear_pointwise") for name in self.names)


def near(found: Tensor, exact: Tensor) -> bool:
    """Whether a float32 result is a float64 one but for roundings."""
    assert found.dtype == torch.float32
    assert exact.dtype == torch.float64
    assert found.shape == exact.shape
    return bool((found - exact).abs().max() <= 2e-6 * exact.abs().max())


SHAPES = [(7, 40, 16), (7, 16, 40), (300, 64, 256), (300, 256, 64), (1, 1, 1)]
"""Rows m, features in k, features out n: fewer out than in, and more."""


@needs_onednn
@pytest.mark.parametrize(("m", "k", "n"), SHAPES)
def test_products_by_onednn_are_those_of_float64(m: int, k: int, n: int, by_onednn: None):
    torch.manual_seed(0)
    x, weight, bias, of_y = (torch.randn(*s) for s in ((m, k), (n, k), (n,), (m, n)))
    exact = x.double() @ weight.double().T
    with Operations() as operations:
        assert near(product(x, weight), exact)
    assert operations.onednn()
    assert near(product(x, weight, bias), exact + bias.double())
    deep = product(x.view(1, m, k).expand(2, m, k), weight, bias)
    assert near(deep, (exact + bias.double()).expand(2, m, n))
    with Operations() as operations:
        assert near(gradient_of_weight(of_y, x), of_y.double().T @ x.double())
    assert operations.onednn()


@needs_onednn
def test_products_by_onednn_read_any_layout(by_onednn: None):
    torch.manual_seed(0)
    x = torch.randn(40, 30).T
    every_other = torch.randn(64, 80)[:, ::2]
    transposed = torch.randn(40, 64).T
    same = torch.randn(64).expand(30, 64)  # as the gradient of a sum is
    for weight in (every_other, transposed):
        assert near(product(x, weight), x.double() @ weight.double().T)
        assert near(product(same, weight.T), same.double() @ weight.double())
    for rows in (x, torch.randn(30, 80)[:, 40:], torch.randn(60, 90)[::2]):
        assert near(gradient_of_weight(same, rows), same.double().T @ rows.double())


@needs_onednn
@pytest.mark.parametrize("shape", [(33,), (9, 33), (4, 9, 33), (0, 33), (2, 0, 33)])
@pytest.mark.parametrize("features", [20, 70])
def test_a_linear_layer_in_training_has_the_values_and_gradients_of_float64(
    shape: tuple[int, ...], features: int, by_onednn: None
):
    torch.manual_seed(0)
    layer = Linear(33, features).train()
    plain = nn.Linear(33, features, dtype=torch.float64)
    plain.load_state_dict({name: tensor.double() for name, tensor in layer.state_dict().items()})
    x = torch.randn(shape, requires_grad=True)
    exact_x = x.detach().double().requires_grad_()
    of_y = torch.randn(*shape[:-1], features)
    y, exact = layer(x), plain(exact_x)
    y.backward(of_y)
    exact.backward(of_y.double())
    torch.testing.assert_close(y.double(), exact, rtol=1e-5, atol=1e-5)
    for one, other in ((x, exact_x), (layer.weight, plain.weight), (layer.bias, plain.bias)):
        torch.testing.assert_close(one.grad.double(), other.grad, rtol=1e-5, atol=1e-5)


@needs_onednn
def test_a_linear_layer_goes_through_onednn_in_training_only(by_onednn: None):
    torch.manual_seed(0)
    layer, plain = Linear(33, 20), nn.Linear(33, 20)
    plain.load_state_dict(layer.state_dict())
    x = torch.randn(4, 9, 33)
    with Operations() as operations:
        layer.train()(x)
    assert operations.onednn()
    with Operations() as operations:
        y = layer.eval()(x)
        y.sum().backward()
    assert not operations.onednn()
    assert torch.equal(y, plain(x))


@needs_onednn
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_types_than_float32_never_go_through_onednn(dtype: torch.dtype, by_onednn: None):
    torch.manual_seed(0)
    layer = Linear(33, 20).to(dtype).train()
    x = torch.randn(4, 9, 33, dtype=dtype, requires_grad=True)
    with Operations() as operations:
        y = layer(x)
        y.sum().backward()
        product(x.detach(), layer.weight.detach())
        gradient_of_weight(y.detach()[0], x.detach()[0])
    assert not operations.onednn()
    assert torch.equal(y, functional.linear(x, layer.weight, layer.bias))


@needs_onednn
def test_a_gradient_of_a_gradient_is_refused_where_it_would_be_wrong(by_onednn: None):
    layer = Linear(3, 2).train()
    x = torch.randn(4, 3, requires_grad=True)
    (gradient,) = torch.autograd.grad(layer(x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.square().sum().backward()


@needs_onednn
@pytest.mark.parametrize(
    ("capability", "maker", "pays"),
    [
        ("AVX512", "AuthenticAMD", True),
        ("AVX512", "GenuineIntel", False),
        ("AVX512", None, False),
        ("AVX2", "AuthenticAMD", False),
        ("DEFAULT", "AuthenticAMD", False),
    ],
)
def test_onednn_pays_where_mkl_leaves_avx512_unused(
    capability: str, maker: str | None, pays: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    processor = tmp_path / "cpuinfo"
    if maker:
        processor.write_text(f"processor\t: 0\nvendor_id\t: {maker}\n")
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(kernels, "Path", lambda name: processor)
    assert onednn_pays.__wrapped__() is pays


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

        def plain(scores: Tensor, allowed: Tensor) -> Tensor:
            seen.append(scores)
            return distribution(scores, allowed)

        monkeypatch.setattr(transformer, "distribution", plain)
        monkeypatch.setattr(transformer, "fused_attention_pays", lambda q, k: fused)
        logits = model(SOURCE, TARGET[:, :-1])
        loss = smoothed_loss(logits, TARGET[:, 1:], 0.1).smoothed
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        return logits, list(gradients), len(seen)

    logits, gradients, calls = run(fused=False)
    fused_logits, fused_gradients, fused_calls = run(fused=True)
    assert (calls, fused_calls) == (6, 0)
    torch.testing.assert_close(fused_logits, logits, atol=1e-5, rtol=1e-5)
    for one, other in zip(fused_gradients, gradients, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


def test_which_attention_is_a_matter_of_the_length():
    short, long = torch.empty(1, 4, 30, 8), torch.empty(1, 4, 500, 8)
    assert fused_attention_pays(long, long)
    assert not fused_attention_pays(short, short)
    assert not fused_attention_pays(short[:, :, :1], long)
    middle = torch.empty(1, 4, 200, 8)
    assert fused_attention_pays(middle, middle)
    assert not fused_attention_pays(middle.bfloat16(), middle.bfloat16())
    assert fused_attention_pays(*2 * [torch.empty(1, 4, 512, 8, dtype=torch.bfloat16)])


@pytest.mark.parametrize("keys", [5, 1000])
def test_attention_in_bfloat16_is_that_of_float64_but_for_roundings(keys: int):
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 4, n, 16).bfloat16() for n in (9, keys, keys))
    allowed = torch.rand(2, 1, 9, keys) < 0.7
    allowed[..., 0] = True
    mixed, weights = attend(q, k, v, allowed)
    exact = q.double(), k.double(), v.double()
    exact_mixed = functional.scaled_dot_product_attention(*exact, attn_mask=allowed)
    # The weights are what it makes of values that are 1 for one key each.
    each = torch.eye(keys, dtype=torch.float64).expand(2, 4, keys, keys)
    exact_weights = functional.scaled_dot_product_attention(*exact[:2], each, attn_mask=allowed)
    assert mixed.dtype == weights.dtype == torch.bfloat16
    # A number in bfloat16 is off by a 256th of itself at most.
    torch.testing.assert_close(weights.double(), exact_weights, rtol=0.03, atol=0)
    torch.testing.assert_close(mixed.double(), exact_mixed, rtol=0.02, atol=0.02)
    assert (weights.double().sum(-1) - 1).abs().max() < 1 / 256
    assert (weights[~allowed.expand_as(weights)] == 0).all()


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


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("p", [0.1, 0.5])
def test_dropout_drops_the_same_in_any_type(p: float, dtype: torch.dtype):
    x = torch.ones(10_001)
    single, other = train(p)(x), train(p)(x.to(dtype))
    assert torch.equal(other == 0, single == 0)
    step = {torch.float64: 2**-23, torch.bfloat16: 2**-8}[dtype]
    torch.testing.assert_close(other.double(), single.double(), rtol=step, atol=0)


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
