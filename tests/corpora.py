"""Small corpora and settings that several tests train on."""

import random
from pathlib import Path

import pytest

from transduce import train
from transduce.errors import Stopped
from transduce.train import loop as loop_module
from transduce.train.config import TrainConfig

SMALL = {
    "model": {
        "preset": "tiny",
        "d_model": 32,
        "d_ff": 64,
        "heads": 2,
        "encoder_layers": 1,
        "decoder_layers": 1,
        "dropout": 0.1,
    },
    "tokenizer": {"vocab_size": 300},
    "train": {
        "max_steps": 20,
        "batch_tokens": 256,
        "warmup": 10,
        "validate_every": 5,
        "save_every": 5,
        "average_last": 2,
        "beam": 2,
    },
    "precision": "fp32",
    "threads": 1,
}
"""Settings of a training of a second or two."""

SMALL_OPTIONS = [
    *("--precision", "fp32"),
    *(
        part
        for section in ("model", "tokenizer", "train")
        for key, value in SMALL[section].items()
        for part in ("--set", f"{section}.{key}={value}")
    ),
]
"""The same for the command line, which takes --threads from the test."""


def reversals(folder: Path, *, pairs: int = 300, seed: int = 1) -> tuple[Path, Path]:
    """Write two files: lines of letters, and the same lines reversed."""
    draw = random.Random(seed)
    lines = [[draw.choice("abcdefgh") for _ in range(draw.randint(2, 6))] for _ in range(pairs)]
    source, target = folder / "text.src", folder / "text.tgt"
    source.write_text("".join(" ".join(line) + "\n" for line in lines), encoding="utf-8")
    target.write_text("".join(" ".join(line[::-1]) + "\n" for line in lines), encoding="utf-8")
    return source, target


def stop_after(step: int, config: TrainConfig) -> None:
    """Train, and stop as soon as a step is saved."""

    def save(training, score):
        original(training, score)
        if training.state.step == step:
            raise Stopped

    original = loop_module._save
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop_module, "_save", save)
        with pytest.raises(Stopped):
            train(config)
