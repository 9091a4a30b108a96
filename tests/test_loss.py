"""The loss: a sum over real labels, the same however they are padded or cut into batches."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from transduce.ids import BOS, EOS, PAD
from transduce.model.config import TransformerConfig
from transduce.model.loss import Loss, smoothed_loss
from transduce.model.transformer import Transformer

# Worked out by hand: five classes, two real labels, then two of padding.
LOGITS = torch.tensor(
    [
        [2.0, 0.5, -1.0, 0.0, 1.0],
        [0.1, 0.2, 3.0, -0.5, 0.4],
        [0.0, 0.0, 0.0, 0.0, 0.0],
        [5.0, 1.0, 1.0, 1.0, 1.0],
    ]
)[None]
LABELS = torch.tensor([[4, 2, PAD, PAD]])
SMOOTHED, PLAIN = 2.059538148, 1.773538148


def is_the_worked_example(loss: Loss) -> None:
    assert loss.smoothed.item() == pytest.approx(SMOOTHED, abs=1e-6)
    assert loss.plain.item() == pytest.approx(PLAIN, abs=1e-6)


def test_smoothing_spreads_over_all_classes_and_perplexity_is_of_the_plain_loss():
    is_the_worked_example(smoothed_loss(LOGITS, LABELS, 0.1))


def test_the_worked_example_by_its_definition():
    smoothed = plain = 0.0
    for logits, label in zip(LOGITS[0].tolist(), LABELS[0].tolist(), strict=True):
        if label == PAD:
            continue
        log_norm = math.log(sum(math.exp(z) for z in logits))
        for c in range(5):
            share = 0.9 * (c == label) + 0.1 / 5
            smoothed -= share * (logits[c] - log_norm)
        plain -= logits[label] - log_norm
    assert smoothed == pytest.approx(SMOOTHED, abs=1e-8)
    assert plain == pytest.approx(PLAIN, abs=1e-8)


def test_more_padding_and_other_logits_there_change_nothing():
    torch.manual_seed(0)
    longer = torch.cat([LOGITS, 50 * torch.randn(1, 30, 5)], dim=1)
    is_the_worked_example(smoothed_loss(longer, functional.pad(LABELS, (0, 30), value=PAD), 0.1))
    changed = LOGITS.clone()
    changed[0, 2:] = torch.tensor([math.inf, -math.inf, math.nan, 1e30, 0.0])
    is_the_worked_example(smoothed_loss(changed, LABELS, 0.1))
    rows = torch.cat([LOGITS, torch.randn(3, 4, 5)])
    is_the_worked_example(smoothed_loss(rows, functional.pad(LABELS, (0, 0, 0, 3)), 0.1))


def test_a_batch_without_padding():
    is_the_worked_example(smoothed_loss(LOGITS[:, :2], LABELS[:, :2], 0.1))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_a_batch_of_nothing_but_padding_is_0_and_so_is_its_gradient(smoothing):
    logits = torch.randn(2, 3, 5, requires_grad=True)
    loss = smoothed_loss(logits, torch.full((2, 3), PAD), smoothing)
    assert loss.smoothed.item() == loss.plain.item() == 0
    loss.smoothed.backward()
    assert torch.equal(logits.grad, torch.zeros(2, 3, 5))


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
def test_equal_to_pytorchs_cross_entropy_with_its_gradient(smoothing):
    torch.manual_seed(0)
    logits = (3 * torch.randn(3, 7, 11)).requires_grad_()
    labels = torch.randint(1, 11, (3, 7))
    labels[1, 4:] = labels[2, 1:] = PAD
    theirs = functional.cross_entropy(
        logits.flatten(0, 1),
        labels.flatten(),
        ignore_index=PAD,
        label_smoothing=smoothing,
        reduction="sum",
    )
    loss = smoothed_loss(logits, labels, smoothing)
    torch.testing.assert_close(loss.smoothed, theirs)
    if not smoothing:
        torch.testing.assert_close(loss.plain, theirs)
    (gradient,) = torch.autograd.grad(loss.smoothed, logits)
    (expected,) = torch.autograd.grad(theirs, logits)
    torch.testing.assert_close(gradient, expected)
    assert (gradient[labels == PAD] == 0).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_logits_are_summed_in_single_precision(dtype):
    loss = smoothed_loss(LOGITS.to(dtype).expand(500, -1, -1), LABELS.expand(500, -1), 0.1)
    assert loss.smoothed.dtype == torch.float32
    exact = smoothed_loss(LOGITS.to(dtype).double(), LABELS, 0.1)
    assert loss.smoothed.item() == pytest.approx(500 * exact.smoothed.item(), rel=1e-5)


# Eight pairs of very different lengths.
PAIRS = [
    ([*range(5, 5 + s), EOS], [*range(6, 6 + t), EOS])
    for s, t in [(1, 12), (9, 1), (3, 3), (12, 2), (2, 9), (1, 1), (7, 6), (4, 11)]
]


def rectangle(rows: list[list[int]]) -> Tensor:
    length = max(map(len, rows))
    return torch.tensor([row + [PAD] * (length - len(row)) for row in rows])


@pytest.mark.parametrize("pairs_a_piece", [1, 2, 5])
def test_the_gradient_is_the_same_in_one_batch_and_in_pieces(pairs_a_piece):
    torch.manual_seed(0)
    model = Transformer(
        TransformerConfig(
            source_vocab_size=20,
            target_vocab_size=20,
            d_model=16,
            heads=2,
            d_ff=32,
            encoder_layers=1,
            decoder_layers=1,
            dropout=0.0,
        )
    )
    tokens = sum(len(target) for _, target in PAIRS)
    assert tokens == 12 + 1 + 3 + 2 + 9 + 1 + 6 + 11 + 8  # EOS counts, padding does not

    def accumulate(size: int) -> tuple[float, list[Tensor]]:
        model.zero_grad()
        logged = 0.0
        for piece in pieces(size):
            source = rectangle([s for s, _ in piece])
            decoder_input = rectangle([[BOS, *t[:-1]] for _, t in piece])
            labels = rectangle([t for _, t in piece])
            loss = smoothed_loss(model(source, decoder_input), labels, 0.1)
            (loss.smoothed / tokens).backward()
            logged += loss.plain.item() / tokens
        return logged, [p.grad.clone() for p in model.parameters()]

    whole_loss, whole = accumulate(8)
    loss, summed = accumulate(pairs_a_piece)
    assert loss == pytest.approx(whole_loss, rel=1e-5)
    for one, other in zip(summed, whole, strict=True):
        assert (one - other).norm() <= 1e-5 * other.norm() + 1e-7


def pieces(size: int) -> list[list[tuple[list[int], list[int]]]]:
    return [PAIRS[i : i + size] for i in range(0, len(PAIRS), size)]
