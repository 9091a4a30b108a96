"""A training with all fast paths is the training without any of them, step by step."""

import random

import pytest
import torch
from torch import Tensor
from torch.optim import Adam

from transduce.config import validate
from transduce.data.batching import Batch, collate
from transduce.model import kernels, transformer
from transduce.model.config import preset
from transduce.model.loss import Loss, smoothed_loss
from transduce.model.transformer import Transformer
from transduce.model.working import working_copy
from transduce.train import loop
from transduce.train.defaults import Chosen
from transduce.train.loop import train_step

CHOSEN = validate(
    Chosen,
    {
        "max_steps": 25,
        "batch_tokens": 100,
        "learning_rate_scale": 1.0,
        "warmup": 1,
        "validate_every": 1,
        "save_every": 1,
        "clip_norm": 1.0,
    },
)


def of_all_logits(states: Tensor, output: Tensor, labels: Tensor, smoothing: float) -> Loss:
    return smoothed_loss(states @ output.T, labels, smoothing)


def batches() -> list[list[Batch]]:
    """Steps of two micro-batches, whose targets are the sources turned round."""
    draw = random.Random(0)

    def pair() -> tuple[list[int], list[int]]:
        words = [draw.randint(4, 19) for _ in range(draw.randint(2, 9))]
        return words, words[::-1]

    return [[collate([pair() for _ in range(8)]) for _ in range(2)] for _ in range(25)]


def losses(monkeypatch: pytest.MonkeyPatch, *, fast: bool, bf16: bool = False) -> list[float]:
    """The loss a token of each step of a training."""
    onednn = fast and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    calls: list[str] = []

    def noted(name: str, original):
        return lambda *arguments: (calls.append(name), original(*arguments))[1]

    with monkeypatch.context() as patch:
        patch.setattr(kernels, "onednn_pays", lambda: onednn)
        patch.setattr(transformer, "fused_attention_pays", lambda q, k: fast)
        plain = noted("distribution", transformer.distribution)
        patch.setattr(transformer, "distribution", plain)
        loss = noted("projected_loss", loop.projected_loss) if fast else of_all_logits
        patch.setattr(loop, "projected_loss", loss)
        torch.manual_seed(0)
        shape = {"d_model": 32, "heads": 2, "encoder_layers": 2, "decoder_layers": 2}
        model = Transformer(preset("tiny", 20, **shape, dropout=0.0)).train()
        working = working_copy(model) if bf16 else model
        optimizer = Adam(model.parameters(), betas=(0.9, 0.98))
        found = []
        for step, micro in enumerate(batches(), start=1):
            rate = 2e-3 * min(1, step / 5)
            result = train_step(
                model, optimizer, micro, CHOSEN, working=working, learning_rate=rate, seed=step
            )
            assert result.applied
            found.append(result.loss / result.tokens)
    assert set(calls) == {"projected_loss" if fast else "distribution"}
    return found


def test_all_fast_paths_learn_what_none_of_them_learns(monkeypatch: pytest.MonkeyPatch):
    plain = losses(monkeypatch, fast=False)
    fast = losses(monkeypatch, fast=True)
    short = losses(monkeypatch, fast=True, bf16=True)
    assert fast == pytest.approx(plain, rel=1e-5)
    assert short == pytest.approx(plain, rel=0.005)
    assert short != plain
    for each in (plain, fast, short):
        assert each[-1] < 0.8 * each[0]
