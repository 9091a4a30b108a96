"""The moving average of the weights: its mathematics, what bears it, that no stop shows in it."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from corpora import SMALL, reversals
from safetensors.numpy import load_file

from transduce import Transformer, bundle, train
from transduce.config import validate
from transduce.errors import Stopped
from transduce.model.config import TransformerConfig
from transduce.train import checkpoint
from transduce.train import loop as loop_module
from transduce.train.config import TrainConfig

STEPS = 12


def settings(folder: Path, out: str, decay: float | None, **changes: object) -> TrainConfig:
    every = {"max_steps": STEPS, "validate_every": 1, "save_every": 1, "average_last": STEPS}
    tree = SMALL | {"train": SMALL["train"] | every | {"ema_decay": decay}} | changes
    text = {"source": str(folder / "text.src"), "target": str(folder / "text.tgt")}
    return validate(TrainConfig, tree | text | {"out": str(folder / out)})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs in which every checkpoint is kept: with an average, and without."""
    folder = tmp_path_factory.mktemp("ema")
    reversals(folder, pairs=100)
    train(settings(folder, "with", 0.5))
    train(settings(folder, "without", None))
    return folder


def tensors(run: Path, step: int, name: str) -> dict[str, np.ndarray]:
    return load_file(checkpoint.path(run, step) / f"{name}.safetensors")


def test_the_saved_model_is_the_average_that_float64_gives(folder: Path):
    record = json.loads((folder / "with" / "config.json").read_text())
    torch.manual_seed(1)
    first = Transformer(validate(TransformerConfig, record["architecture"]))
    mean = {name: t.double().numpy() for name, t in bundle.weights(first).items()}
    for step in range(1, STEPS + 1):
        # The decay's warm-up rules until step 8; from then on 0.5 itself.
        decay = min(0.5, (1 + step) / (10 + step))
        raw = tensors(folder / "with", step, "training")
        saved = tensors(folder / "with", step, "model")
        for name in mean:
            mean[name] = decay * mean[name] + (1 - decay) * raw[f"weights.{name}"].astype(float)
            np.testing.assert_allclose(saved[name], mean[name], rtol=1e-5, atol=1e-7)
    assert any(np.abs(saved[name] - raw[f"weights.{name}"]).max() > 1e-4 for name in mean)


def test_the_average_does_not_touch_the_training(folder: Path):
    for step in range(1, STEPS + 1):
        raw = tensors(folder / "with", step, "training")
        plain = tensors(folder / "without", step, "model")
        moments = tensors(folder / "without", step, "training")
        for name, tensor in plain.items():
            assert np.array_equal(raw[f"weights.{name}"], tensor)
        for name, tensor in moments.items():
            assert np.array_equal(raw[name], tensor)


def test_validated_is_what_is_saved(folder: Path, monkeypatch: pytest.MonkeyPatch):
    seen = []

    def spy(shown: bundle.Bundle, *rest: object, **named: object) -> object:
        seen.append({name: t.numpy().copy() for name, t in bundle.weights(shown.model).items()})
        return original(shown, *rest, **named)

    original = loop_module.validate
    monkeypatch.setattr(loop_module, "validate", spy)
    train(settings(folder, "spied", 0.5))
    for step, validated in enumerate(seen[:STEPS], start=1):
        saved = tensors(folder / "spied", step, "model")
        assert all(np.array_equal(saved[name], validated[name]) for name in saved)
    # At the end: the best checkpoint, then the mean of those that were validated.
    for name, tensor in seen[-1].items():
        every = [tensors(folder / "spied", s, "model")[name] for s in range(1, STEPS + 1)]
        np.testing.assert_allclose(tensor, np.mean(every, axis=0, dtype=float), atol=1e-6)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_stopped_and_gone_on_it_is_the_same_to_the_byte(folder: Path, precision: str):
    def stop_at_five(training: object, score: object) -> None:
        original(training, score)
        if training.state.step in (5, 9):
            raise Stopped

    original = loop_module._save
    whole = settings(folder, f"whole-{precision}", 0.9, precision=precision)
    train(whole)
    parts = settings(folder, f"parts-{precision}", 0.9, precision=precision)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop_module, "_save", stop_at_five)
        for _ in range(2):
            with pytest.raises(Stopped):
                train(parts)
    train(parts)
    assert (parts.out / "best").readlink() == (whole.out / "best").readlink()
    for name in ("best/model.safetensors", f"checkpoints/step-{STEPS}/training.safetensors"):
        assert (parts.out / name).read_bytes() == (whole.out / name).read_bytes()


def test_a_run_from_before_this_setting_goes_on(folder: Path):
    path = folder / "without" / "config.json"
    record = json.loads(path.read_text())
    del record["settings"]["train"]["ema_decay"], record["chosen"]["ema_decay"]
    path.write_text(json.dumps(record))
    result = train(settings(folder, "without", None))
    assert result.folder == folder / "without" / "best"
