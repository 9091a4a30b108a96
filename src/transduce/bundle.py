"""The model directory, the interface between everything: save, load, find, average.

config.json          format, architecture, language codes, licence
model.safetensors    the weights, each tensor once
tokenizer.model      SentencePiece; or source.model and target.model where the sides differ
model_card.md        what it was made of and how well it does
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from transduce.config import validate
from transduce.device import choose_device
from transduce.errors import BundleError, SettingsError
from transduce.model.config import TransformerConfig
from transduce.model.transformer import Transformer
from transduce.text.tokenizer import Tokenizer

FORMAT = 1
"""Version of the directory; a reader refuses what is newer."""


class Bundle(NamedTuple):
    """A usable model: weights and the two sides' tokenizers (often the same one)."""

    model: Transformer
    source_tokenizer: Tokenizer
    target_tokenizer: Tokenizer
    about: dict[str, str]
    """source_language, target_language, licence; empty where unknown."""


def save(folder: Path, bundle: Bundle, card: str) -> None:
    """Write the files of a model directory into a folder that exists."""
    config = {
        "format": FORMAT,
        **bundle.about,
        "architecture": bundle.model.config.model_dump(mode="json"),
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    save_file(weights(bundle.model), folder / "model.safetensors")
    if bundle.source_tokenizer is bundle.target_tokenizer:
        bundle.source_tokenizer.save(folder / "tokenizer.model")
    else:
        bundle.source_tokenizer.save(folder / "source.model")
        bundle.target_tokenizer.save(folder / "target.model")
    (folder / "model_card.md").write_text(card, encoding="utf-8")


def load(path: str | Path, *, device: str | torch.device = "cpu") -> Bundle:
    """Read a model directory, or the best one of a training run, ready for use (no dropout).

    Raises:
        BundleError: no such folder, a file that is missing, damaged, of another format, or does not
            fit the others.
    """
    device = choose_device(str(device))
    folder = find(Path(path))
    config = _read_config(folder)
    try:
        architecture = validate(TransformerConfig, config["architecture"])
    except SettingsError as error:
        raise BundleError(f"{folder / 'config.json'}: {error}") from None
    with torch.random.fork_rng(devices=[]):  # the first weights are drawn, then replaced
        model = Transformer(architecture)
    load_weights(model, folder / "model.safetensors")
    source_tokenizer, target_tokenizer = load_tokenizers(folder)
    for side, tokenizer, size in (
        ("source", source_tokenizer, architecture.source_vocab_size),
        ("target", target_tokenizer, architecture.target_vocab_size),
    ):
        if tokenizer.size != size:
            raise BundleError(
                f"{folder}: the {side} tokenizer has {tokenizer.size} pieces, the model {size}"
            )
    about = {key: str(config.get(key, "")) for key in _ABOUT}
    return Bundle(model.eval().to(device), source_tokenizer, target_tokenizer, about)


_ABOUT = ("source_language", "target_language", "licence")


def find(path: Path) -> Path:
    """Return the model directory that a path names: itself, or the `best` of a training run.

    Raises:
        BundleError: neither.
    """
    if not path.exists():
        raise BundleError(f"{path}: no such model; give a folder that `transduce train` made")
    for folder in (path, path / "best"):
        if (folder / "model.safetensors").exists():
            return folder
    if (path / "checkpoints").exists():
        raise BundleError(f"{path}: this training has not reached its first checkpoint yet")
    raise BundleError(f"{path} is not a model: it has no model.safetensors")


def load_tokenizers(folder: Path) -> tuple[Tokenizer, Tokenizer]:
    """Read the source's and the target's tokenizer of a folder: one object where they are one.

    Raises:
        BundleError, TokenizerError: there is none, or it is damaged.
    """
    if (folder / "tokenizer.model").exists():
        tokenizer = Tokenizer.load(folder / "tokenizer.model")
        return tokenizer, tokenizer
    if not (folder / "source.model").exists():
        raise BundleError(f"{folder} is not a usable model: it has no tokenizer.model")
    return Tokenizer.load(folder / "source.model"), Tokenizer.load(folder / "target.model")


def weights(model: Transformer) -> dict[str, Tensor]:
    """Name the parameters, each once: a tied table goes by the first of its names."""
    return {name: tensor.detach().cpu().contiguous() for name, tensor in model.named_parameters()}


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read a safetensors file; nothing else is ever opened, so nothing in a file can run.

    Raises:
        BundleError: missing, damaged, or of another kind.
    """
    try:
        return load_file(path)
    except FileNotFoundError:
        raise BundleError(f"{path}: no such file") from None
    except (SafetensorError, OSError) as error:
        raise BundleError(f"{path} is damaged or not safetensors: {error}") from None


def load_weights(model: Transformer, path: Path) -> None:
    """Put the tensors of a file into a model, as `put_weights` does."""
    put_weights(model, read_tensors(path), path)


@torch.no_grad()
def put_weights(model: Transformer, tensors: dict[str, Tensor], path: Path) -> None:
    """Put tensors, those of `path`, into a model; each name on both sides is used exactly once.

    Raises:
        BundleError: names missing or left over, another shape, or numbers that are none.
    """
    parameters = dict(model.named_parameters())
    missing, unknown = parameters.keys() - tensors.keys(), tensors.keys() - parameters.keys()
    if missing or unknown:
        raise BundleError(
            f"{path} does not fit its config.json: missing {sorted(missing)[:3]}, "
            f"unknown {sorted(unknown)[:3]}"
        )
    for name, parameter in parameters.items():
        if parameter.shape != tensors[name].shape:
            raise BundleError(
                f"{path}: {name} has shape {tuple(tensors[name].shape)}, "
                f"config.json says {tuple(parameter.shape)}"
            )
        if not tensors[name].isfinite().all():
            raise BundleError(f"{path}: {name} holds numbers that are not finite; it is no model")
        parameter.copy_(tensors[name])


def average(folders: Sequence[Path]) -> dict[str, Tensor]:
    """Mean of the weights of several model directories of one architecture (section 6.1).

    Raises:
        BundleError: their architectures or tokenizers differ.
    """
    first, *others = folders
    for other in others:
        for name in ("config.json", "tokenizer.model", "source.model", "target.model"):
            here, there = first / name, other / name
            if here.exists() != there.exists() or (
                here.exists() and here.read_bytes() != there.read_bytes()
            ):
                raise BundleError(f"{other} cannot be averaged with {first}: their {name} differ")
    total = {name: t.double() for name, t in read_tensors(first / "model.safetensors").items()}
    for other in others:
        for name, tensor in read_tensors(other / "model.safetensors").items():
            total[name] += tensor
    return {name: (tensor / len(folders)).float() for name, tensor in total.items()}


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError:
        raise BundleError(f"{folder} is not a model: it has no config.json") from None
    except ValueError as error:
        raise BundleError(f"{path} is not JSON: {error}") from None
    if not isinstance(config, dict) or not isinstance(config.get("architecture"), dict):
        raise BundleError(f"{path} describes no model: it has no 'architecture'")
    if config.get("format") != FORMAT:
        raise BundleError(
            f"{path} has format {config.get('format')!r}; this version reads {FORMAT}"
        )
    return config
