"""What is measured before a training begins is a step like those to come."""

from pathlib import Path

import pytest
import torch
from corpora import SMALL, reversals
from rich.console import Console

from transduce.config import validate
from transduce.data.batching import collate, plan
from transduce.train import start
from transduce.train.config import TrainConfig
from transduce.train.defaults import choose
from transduce.train.prepare import prepare


@pytest.mark.parametrize("seed", range(1, 9))
def test_time_and_precision_are_measured_on_a_full_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
):
    source, target = reversals(tmp_path)
    tree = SMALL | {"source": str(source), "target": str(target), "seed": seed}
    config = validate(TrainConfig, tree)
    data = prepare(config, tmp_path / "data", {}, Console(quiet=True))
    tokens = int(data.train.lengths.sum())
    choices = choose(config, pairs=len(data.train), tokens=tokens, vocab_sizes=data.sizes)
    taken = []
    measured = start.train_step

    def step(model, optimizer, batches, *arguments, **named):
        taken.extend(batch.tokens for batch in batches)
        return measured(model, optimizer, batches, *arguments, **named)

    monkeypatch.setattr(start, "train_step", step)
    start.measure_steps(config, data, choices.architecture, choices.chosen, torch.device("cpu"))
    steps = plan(data.train.lengths, choices.chosen.batch_tokens, seed=seed, epoch=0)
    real = [collate([data.train[r] for r in rows]).tokens for each in steps for rows in each]
    assert min(real) < max(real)
    assert min(taken) >= sorted(real)[len(real) // 2]  # never a rest of a few rows
