"""The loss in chunks is the loss of all logits, with its gradients, and needs the memory of one."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from transduce.ids import PAD
from transduce.model import fused_loss
from transduce.model.fused_loss import projected_loss
from transduce.model.loss import Loss, smoothed_loss

B, T, D, V = 3, 17, 8, 29
LESS_THAN_A_ROW, FIVE_ROWS, ALL = 1, 5 * V + 3, 2**24
"""Logits in a chunk; the 51 rows are no multiple of five."""


def example(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    """States, output matrix, and labels, of which a third is padding, between real ones too."""
    torch.manual_seed(0)
    states = torch.randn(B, T, D, dtype=torch.float64).to(dtype).requires_grad_()
    output = torch.randn(V, D, dtype=torch.float64).to(dtype).requires_grad_()
    labels = torch.randint(4, V, (B, T))
    labels[torch.rand(B, T) < 0.3] = PAD
    labels[1, 9:] = PAD
    assert 20 < (labels == PAD).sum() < 30
    return states, output, labels


def exact(
    states: Tensor, output: Tensor, labels: Tensor, smoothing: float
) -> tuple[Tensor, list[Tensor]]:
    """PyTorch's smoothed loss in float64, and the gradients of states and output."""
    leaves = [leaf.detach().double().requires_grad_() for leaf in (states, output)]
    loss = functional.cross_entropy(
        (leaves[0] @ leaves[1].T).flatten(0, 1),
        labels.flatten(),
        ignore_index=PAD,
        label_smoothing=smoothing,
        reduction="sum",
    )
    return loss, list(torch.autograd.grad(loss, leaves))


def far(found: Tensor, expected: Tensor) -> float:
    """How far a tensor is from another, by the length of that."""
    assert found.shape == expected.shape
    found, expected = found.detach().double(), expected.detach().double()
    return float((found - expected).norm() / expected.norm())


@pytest.mark.parametrize("chunk", [LESS_THAN_A_ROW, FIVE_ROWS, ALL])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 2e-6)], ids=str
)
def test_in_any_chunks_it_is_the_loss_of_all_logits(
    dtype: torch.dtype,
    tolerance: float,
    smoothing: float,
    chunk: int,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(fused_loss, "_CHUNK", chunk)
    states, output, labels = example(dtype)
    loss = projected_loss(states, output, labels, smoothing)
    gradients = torch.autograd.grad(loss.smoothed, [states, output])
    theirs, their_gradients = exact(states, output, labels, smoothing)
    plainly = smoothed_loss(states.double() @ output.double().T, labels, smoothing)
    assert loss.smoothed.dtype == loss.plain.dtype == dtype
    assert far(loss.smoothed, theirs) < tolerance
    assert far(loss.smoothed, plainly.smoothed) < tolerance
    assert far(loss.plain, plainly.plain) < tolerance
    for one, other in zip(gradients, their_gradients, strict=True):
        assert one.dtype == dtype
        assert far(one, other) < tolerance
    assert (gradients[0][labels == PAD] == 0).all()
    assert not loss.plain.requires_grad


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_its_gradient_is_the_slope(smoothing: float, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(fused_loss, "_CHUNK", FIVE_ROWS)
    states, output, labels = example()

    def smoothed(states: Tensor, output: Tensor) -> Tensor:
        return projected_loss(states, output, labels, smoothing).smoothed

    assert torch.autograd.gradcheck(smoothed, (states, output))


def test_other_states_at_padding_change_nothing():
    states, output, labels = example()
    changed = states.detach() + 50 * torch.randn(B, T, D) * (labels == PAD)[..., None]
    changed.requires_grad_()
    losses = [projected_loss(each, output, labels, 0.1) for each in (states, changed)]
    torch.testing.assert_close(losses[1].smoothed, losses[0].smoothed)
    torch.testing.assert_close(losses[1].plain, losses[0].plain)
    of_output = [torch.autograd.grad(loss.smoothed, output)[0] for loss in losses]
    torch.testing.assert_close(of_output[1], of_output[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_batch_of_nothing_but_padding_is_0_and_so_are_its_gradients(dtype: torch.dtype):
    states, output, labels = example(torch.float32)
    loss = projected_loss(states.to(dtype), output, torch.full_like(labels, PAD), 0.1)
    assert loss.smoothed.item() == loss.plain.item() == 0
    loss.smoothed.backward()
    assert torch.equal(states.grad, torch.zeros(B, T, D))
    assert torch.equal(output.grad, torch.zeros(V, D))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_a_label_whose_probability_is_0_in_float32_has_its_loss(smoothing: float):
    # The logits are 0, 50, 0, 100 and, of the label, -100; e^-200 is no number of float32.
    states = torch.tensor([[[100.0]]], requires_grad=True)
    output = torch.tensor([[0.0], [0.5], [0.0], [1.0], [-1.0]], requires_grad=True)
    loss = projected_loss(states, output, torch.tensor([[4]]), smoothing)
    assert loss.plain.item() == pytest.approx(200, rel=1e-6)
    spread = (100 + 50 + 100 + 0 + 200) / 5
    assert loss.smoothed.item() == pytest.approx((1 - smoothing) * 200 + smoothing * spread)
    loss.smoothed.backward()
    # Softmax is 1 at class 3; the target has 1 - smoothing at 4, and a fifth of the rest on each.
    errors = torch.full((5,), -smoothing / 5)
    errors[3] += 1
    errors[4] -= 1 - smoothing
    torch.testing.assert_close(states.grad, (errors @ output.detach())[None, None])
    torch.testing.assert_close(output.grad, 100 * errors[:, None])


@pytest.mark.parametrize("chunk", [LESS_THAN_A_ROW, FIVE_ROWS, ALL])
def test_states_in_bfloat16_and_an_output_in_float32(chunk: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(fused_loss, "_CHUNK", chunk)
    states, output, labels = example(torch.float32)
    short = states.detach().bfloat16().requires_grad_()
    loss = projected_loss(short, output, labels, 0.1)
    assert loss.smoothed.dtype == loss.plain.dtype == torch.float32
    of_states, of_output = torch.autograd.grad(loss.smoothed, [short, output])
    theirs, (exact_of_states, exact_of_output) = exact(short, output.bfloat16(), labels, 0.1)
    assert far(loss.smoothed, theirs) < 0.003
    assert of_states.dtype == torch.bfloat16
    assert far(of_states, exact_of_states) < 0.01
    assert of_output.dtype == torch.float32
    assert far(of_output, exact_of_output) < 0.01


def test_in_bfloat16_the_gradient_of_the_output_is_summed_in_float32(
    monkeypatch: pytest.MonkeyPatch,
):
    # 4,000 rows of the same: a sum of bfloat16 that grows by 1 a chunk stalls at 256.
    monkeypatch.setattr(fused_loss, "_CHUNK", 1)
    states = torch.ones(1, 4000, 2, dtype=torch.bfloat16)
    output = torch.zeros(4, 2, requires_grad=True)
    projected_loss(states, output, torch.full((1, 4000), 3), 0.0).smoothed.backward()
    expected = torch.tensor([1000.0, 1000.0, 1000.0, -3000.0])[:, None].expand(4, 2)
    torch.testing.assert_close(output.grad, expected, rtol=1e-6, atol=0)


def test_what_follows_the_loss_reaches_the_gradients():
    states, output, labels = example()
    gradients = [
        torch.autograd.grad(factor * projected_loss(states, output, labels, 0.1).smoothed, leaves)
        for factor in (1, 1 / 7)
        for leaves in [[states, output]]
    ]
    for whole, part in zip(*gradients, strict=True):
        torch.testing.assert_close(part, whole / 7)


class Largest(TorchDispatchMode):
    """Notes the size of the largest tensor that anything makes."""

    size = 0

    def __torch_dispatch__(self, function, types, arguments=(), named=None):
        result = function(*arguments, **(named or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self.size = max(self.size, leaf.numel())
        return result


@pytest.mark.parametrize("vocabulary", [8_000, 64_000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_matrix_of_all_logits_never_exists(
    dtype: torch.dtype, vocabulary: int, monkeypatch: pytest.MonkeyPatch
):
    chunk, rows, width = 2**19, 300, 8
    monkeypatch.setattr(fused_loss, "_CHUNK", chunk)
    torch.manual_seed(0)
    states = torch.randn(6, rows // 6, width, dtype=dtype, requires_grad=True)
    output = torch.randn(vocabulary, width, requires_grad=True)
    labels = torch.randint(4, vocabulary, (6, rows // 6))
    most = max(chunk, vocabulary * width, rows * width)
    assert rows * vocabulary > 4 * most

    def largest(loss_of) -> int:
        with Largest() as seen:
            loss: Loss = loss_of()
            loss.smoothed.backward()
        assert math.isfinite(loss.smoothed.item())
        return seen.size

    assert largest(lambda: projected_loss(states, output, labels, 0.1)) <= most
    # And the measure sees the whole matrix where it is made.
    logits = rows * vocabulary
    assert largest(lambda: smoothed_loss(states @ output.to(dtype).T, labels, 0.1)) == logits


def test_a_gradient_of_the_gradient_is_refused():
    states = torch.randn(1, 2, 3, requires_grad=True)
    output = torch.randn(5, 3, requires_grad=True)
    loss = projected_loss(states, output, torch.tensor([[1, 2]]), 0.1).smoothed
    (gradient,) = torch.autograd.grad(loss.square(), states, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()
