"""A model directory is read as it was written; what is no model is refused, and nothing runs."""

import json
import os
import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from transduce import bundle
from transduce.bundle import Bundle
from transduce.errors import BundleError, TransduceError
from transduce.model.config import TransformerConfig
from transduce.model.transformer import Transformer
from transduce.text.tokenizer import Tokenizer, TokenizerConfig, train_tokenizer

TEXTS = ["a small cat sees the old dog", "the dog likes a red boat", "every child paints"]
ABOUT = {"source_language": "en", "target_language": "nl", "licence": "CC0-1.0", "note": "a test"}


def tokenizer(size: int = 290) -> Tokenizer:
    return train_tokenizer(TEXTS, TokenizerConfig(), vocab_size=size)


def small(source: int, target: int, tie: str, norm: str = "post") -> Transformer:
    torch.manual_seed(0)
    return Transformer(
        TransformerConfig(
            source_vocab_size=source,
            target_vocab_size=target,
            d_model=16,
            heads=2,
            d_ff=32,
            encoder_layers=1,
            decoder_layers=1,
            tie=tie,
            norm=norm,
        )
    ).eval()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    one = tokenizer()
    bundle.save(tmp_path, Bundle(small(one.size, one.size, "all"), one, one, ABOUT), "# A model\n")
    return tmp_path


@pytest.mark.parametrize("tie", ["all", "decoder", "none"])
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_what_is_saved_is_loaded(tmp_path: Path, tie: str, norm: str):
    source = tokenizer()
    target = source if tie == "all" else tokenizer(284)
    model = small(source.size, target.size, tie, norm)
    bundle.save(tmp_path, Bundle(model, source, target, ABOUT), "")
    loaded = bundle.load(tmp_path)
    assert loaded.about == ABOUT
    assert loaded.model.config == model.config
    assert not loaded.model.training
    ids, prefix = torch.tensor([[5, 6, 2]]), torch.tensor([[1, 7]])
    torch.testing.assert_close(loaded.model(ids, prefix), model(ids, prefix), rtol=0, atol=0)
    assert loaded.source_tokenizer.model == source.model
    assert loaded.target_tokenizer.model == target.model
    assert (loaded.source_tokenizer is loaded.target_tokenizer) == (tie == "all")


def test_loading_leaves_the_callers_random_numbers_alone(folder: Path):
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    bundle.load(folder)
    assert torch.equal(torch.rand(2), expected)


def test_a_tied_table_is_stored_once(folder: Path):
    names = bundle.read_tensors(folder / "model.safetensors").keys()
    assert "source_embedding.table.weight" in names
    assert "target_embedding.table.weight" not in names
    assert "output.weight" not in names


def edit(folder: Path, **changes: object) -> None:
    config = json.loads((folder / "config.json").read_text())
    for key, value in changes.items():
        config[key] = value
    (folder / "config.json").write_text(json.dumps(config))


def test_a_run_stands_for_its_best(folder: Path, tmp_path_factory: pytest.TempPathFactory):
    run = tmp_path_factory.mktemp("run")
    with pytest.raises(BundleError, match=r"no model\.safetensors"):
        bundle.load(run)
    (run / "checkpoints").mkdir()
    with pytest.raises(BundleError, match="chosen no best model yet"):
        bundle.load(run)
    folder.rename(run / "checkpoints" / "step-1")
    (run / "best").symlink_to("checkpoints/step-1")
    assert bundle.find(run) == run / "best"
    (run.parent / "link").symlink_to(run)  # a user's own link to the whole
    assert bundle.load(run.parent / "link").about == ABOUT


def test_damage_is_named(folder: Path):
    whole = (folder / "model.safetensors").read_bytes()
    for bad in (b"", whole[:100], whole[:-1], b"\xff" * 64):
        (folder / "model.safetensors").write_bytes(bad)
        with pytest.raises(BundleError, match=r"model\.safetensors"):
            bundle.load(folder)
    (folder / "model.safetensors").write_bytes(whole)
    for text in ("", "{", "[]", "3", '"x"'):
        (folder / "config.json").write_text(text)
        with pytest.raises(BundleError, match=r"config\.json"):
            bundle.load(folder)


def test_what_does_not_fit_is_named(folder: Path):
    tensors = bundle.read_tensors(folder / "model.safetensors")
    name = "encoder.0.feed_forward.inner.weight"

    def refused(changed: dict[str, torch.Tensor], match: str) -> None:
        save_file(changed, folder / "model.safetensors")
        with pytest.raises(BundleError, match=match):
            bundle.load(folder)

    refused({k: v for k, v in tensors.items() if k != name}, f"missing.*{name}")
    refused(tensors | {"extra": torch.ones(1)}, "unknown.*extra")
    refused(tensors | {name: torch.ones(3, 3)}, f"{name} has shape")
    refused(tensors | {name: tensors[name] / 0}, f"{name} holds numbers that are not finite")


def test_unknown_settings_and_newer_formats_are_refused(folder: Path):
    edit(folder, format=2)
    with pytest.raises(BundleError, match="format 2"):
        bundle.load(folder)
    architecture = json.loads((folder / "config.json").read_text())["architecture"]
    edit(folder, format=1, architecture=architecture | {"head": 3})
    with pytest.raises(BundleError, match="did you mean 'heads'"):
        bundle.load(folder)


def test_a_missing_tokenizer_is_named(folder: Path):
    (folder / "tokenizer.model").unlink()
    with pytest.raises(BundleError, match=r"no tokenizer\.model"):
        bundle.load(folder)


def test_a_tokenizer_of_another_size_is_refused(folder: Path):
    tokenizer(284).save(folder / "tokenizer.model")
    with pytest.raises(BundleError, match="tokenizer has 284 pieces"):
        bundle.load(folder)


class Trap:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.model", "config.json"])
def test_a_pickle_in_disguise_is_refused_and_does_not_run(folder: Path, name: str):
    sprung = folder / "sprung"
    (folder / name).write_bytes(pickle.dumps(Trap(sprung)))
    with pytest.raises(TransduceError):
        bundle.load(folder)
    assert not sprung.exists()


def test_the_average_refuses_models_of_other_settings_or_words(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
):
    other = tmp_path_factory.mktemp("other")
    one = tokenizer(284)
    bundle.save(other, Bundle(small(one.size, one.size, "all"), one, one, ABOUT), "")
    with pytest.raises(BundleError, match=r"config\.json differ"):
        bundle.average([folder, other])
    same = tmp_path_factory.mktemp("same")
    shuffled = train_tokenizer(["zz yy " * 50, *TEXTS], TokenizerConfig(), vocab_size=290)
    bundle.save(same, Bundle(small(290, 290, "all"), shuffled, shuffled, ABOUT), "")
    with pytest.raises(BundleError, match=r"tokenizer\.model differ"):
        bundle.average([folder, same])
