"""The model directory, the interface between everything: save, load, find, average.

config.json          format, architecture, languages, licence, note, what an average was made of
model.safetensors    the weights, each tensor once
tokenizer.model      SentencePiece; or source.model and target.model where the sides differ
model_card.md        what it was made of and how well it does

A model may be a stranger's: nothing in it can run, nothing is allocated before the sizes of its
files are known to fit each other and the machine, and a file that is a link out of its folder, a
pipe or a device is refused (files.py).
"""

import json
import math
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from transduce.config import validate
from transduce.device import choose_device, machine_memory
from transduce.errors import BundleError, SettingsError
from transduce.files import plain, read_json
from transduce.model.config import TransformerConfig
from transduce.model.transformer import Transformer
from transduce.text.tokenizer import Tokenizer

FORMAT = 1
_SURROGATE = re.compile("[\ud800-\udfff]")  # what UTF-8 cannot write
"""Version of the directory; a reader refuses what is newer."""

Shapes = dict[str, tuple[int, ...]]
"""Names of tensors, and how large each is."""


class Bundle(NamedTuple):
    """A usable model: weights and the two sides' tokenizers (often the same one)."""

    model: Transformer
    source_tokenizer: Tokenizer
    target_tokenizer: Tokenizer
    about: dict[str, str]
    """The facts of ABOUT."""


def save(
    folder: Path, bundle: Bundle, card: str, *, sources: Sequence[dict[str, Any]] = ()
) -> None:
    """Write the files of a model directory into a folder that exists.

    `sources` are the models that this one is the average of, each {"step", "sha256"}.
    """
    config = {
        "format": FORMAT,
        **bundle.about,
        "architecture": bundle.model.config.model_dump(mode="json"),
        **({"average_of": list(sources)} if sources else {}),
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    save_file(weights(bundle.model), folder / "model.safetensors")
    save_tokenizers(folder, bundle.source_tokenizer, bundle.target_tokenizer)
    (folder / "model_card.md").write_text(card, encoding="utf-8")


def load(path: str | Path, *, device: str | torch.device = "cpu") -> Bundle:
    """Read a model directory, or the best one of a training run, ready for use (no dropout).

    Raises:
        BundleError: no such folder, a file that is missing, damaged, of another format, or does not
            fit the others.
    """
    device = choose_device(str(device))
    if not isinstance(path, str | Path) or not str(path):
        raise BundleError(f"a model is named by the path of its folder, not {path!r:.60}")
    folder = find(Path(path))
    config = read_config(folder)
    architecture = config["architecture"]
    shapes, size = measure(architecture)
    _check_memory(f"{folder}: the model takes", size)
    tensors = read_tensors(folder / "model.safetensors", shapes)
    with torch.random.fork_rng(devices=[]):  # the first weights are drawn, then replaced
        model = Transformer(architecture)
    put_weights(model, tensors, folder / "model.safetensors")
    source_tokenizer, target_tokenizer = load_tokenizers(folder, architecture)
    about = {key: config[key] for key in ABOUT}
    return Bundle(model.eval().to(device), source_tokenizer, target_tokenizer, about)


ABOUT = ("source_language", "target_language", "licence", "note")
"""What config.json says of a model in words; empty where nothing was stated."""


def find(path: Path) -> Path:
    """Return the model directory that a path names: itself, or the `best` of a training run.

    Raises:
        BundleError: neither.
    """
    try:
        if not path.exists():
            raise BundleError(f"{path}: no such model; give a folder that `transduce train` made")
        if path.is_file():
            raise BundleError(f"{path} is a file, not a model: MODEL, a folder, comes first")
        if os.path.lexists(path / "model.safetensors"):
            return path
        best = path / "best"
        if (best / "model.safetensors").exists():
            if not best.resolve().is_relative_to(path.resolve()):
                raise BundleError(f"{best} leads out of the run; name the model it leads to")
            return best
        if (path / "checkpoints").exists():
            raise BundleError(
                f"{path}: this training has chosen no best model yet, or its link `best` is lost; "
                "run its command again, or name one of its checkpoints, if it has any"
            )
    except OSError as error:
        raise BundleError(f"{path}: {error.strerror}") from None
    raise BundleError(f"{path} is not a model: it has no model.safetensors")


def save_tokenizers(folder: Path, source: Tokenizer, target: Tokenizer) -> None:
    """Write the two sides' tokenizers as `load_tokenizers` reads them: one where they are one."""
    if source is target:
        source.save(folder / "tokenizer.model")
    else:
        source.save(folder / "source.model")
        target.save(folder / "target.model")


def load_tokenizers(
    folder: Path, architecture: TransformerConfig | None = None
) -> tuple[Tokenizer, Tokenizer]:
    """Read the source's and the target's tokenizer of a folder: one object where they are one.

    Raises:
        BundleError, TokenizerError: there is none, it is damaged, or not of the model's size.
    """
    if os.path.lexists(folder / "tokenizer.model"):
        source = target = Tokenizer.load(folder / "tokenizer.model")
    elif os.path.lexists(folder / "source.model"):
        source = Tokenizer.load(folder / "source.model")
        target = Tokenizer.load(folder / "target.model")
    else:
        raise BundleError(f"{folder} is not a usable model: it has no tokenizer.model")
    if architecture is not None:
        for side, tokenizer, size in (
            ("source", source, architecture.source_vocab_size),
            ("target", target, architecture.target_vocab_size),
        ):
            if tokenizer.size != size:
                raise BundleError(
                    f"{folder}: the {side} tokenizer has {tokenizer.size} pieces, the model {size}"
                )
    return source, target


def weights(model: Transformer) -> dict[str, Tensor]:
    """Name the parameters, each once: a tied table goes by the first of its names."""
    return {name: tensor.detach().cpu().contiguous() for name, tensor in model.named_parameters()}


def count_parameters(model: torch.nn.Module) -> int:
    """Count the numbers that training sets; a table that is shared counts once."""
    return sum(parameter.numel() for parameter in model.parameters())


def measure(architecture: TransformerConfig) -> tuple[Shapes, int]:
    """The shapes of a model's parameters, and the bytes that making it takes, without making it."""
    with torch.device("meta"):
        model = Transformer(architecture)
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
    # Sinusoids are made in float64, in three steps.
    tables = sum(table.numel() * (4 + 3 * 8) for table in model.buffers())
    return shapes, sum(map(math.prod, shapes.values())) * 4 + tables


def _check_memory(what: str, size: int) -> None:
    if size > (there := machine_memory(torch.device("cpu"))):
        raise BundleError(f"{what} {size / 1e9:,.1f} GB, this machine has {there / 1e9:,.1f}")


def check_name(path: Path) -> None:
    """Check that a model can be written to a path, or read from it.

    Raises:
        BundleError: its name is not UTF-8.
    """
    if _SURROGATE.search(str(path)):
        raise BundleError(f"{path}: safetensors works only where names are UTF-8; rename it")


def read_header(path: Path) -> Shapes:
    """Read which tensors a safetensors file of float32 holds, and none of their numbers.

    Raises:
        BundleError: missing, damaged, or of another kind.
    """
    shapes = {}
    check_name(path)
    try:
        with safe_open(plain(path), "pt") as file:
            for name in file.keys():  # noqa: SIM118 - it is no mapping
                tensor = file.get_slice(name)
                if tensor.get_dtype() != "F32":
                    raise ValueError(f"{name!r:.60} is {tensor.get_dtype()}, not float32")
                shapes[name] = tuple(tensor.get_shape())
    except OSError as error:
        raise BundleError(f"{path}: {error.strerror or error}") from None
    except (SafetensorError, ValueError, MemoryError) as error:  # memory: as large as the file
        raise BundleError(f"{path} is damaged or not safetensors: {str(error)[:200]!r}") from None
    return shapes


def read_tensors(path: Path, shapes: Shapes | None = None) -> dict[str, Tensor]:
    """Read a safetensors file of float32; nothing else is ever opened, so nothing in it can run.

    Where `shapes` are given, its tensors are just these, and the file is no larger than they are.

    Raises:
        BundleError: missing, damaged, of another kind, or other tensors.
    """
    header = read_header(path)
    if shapes is not None:
        check_shapes(path, header, shapes)
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise BundleError(f"{path} is damaged or not safetensors: {error}") from None


def load_weights(model: Transformer, path: Path) -> None:
    """Put the tensors of a file into a model, as `put_weights` does."""
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    put_weights(model, read_tensors(path, shapes), path)


@torch.no_grad()
def put_weights(model: Transformer, tensors: dict[str, Tensor], path: Path) -> None:
    """Put tensors, those of `path`, into a model; each name on both sides is used exactly once.

    Raises:
        BundleError: names missing or left over, another shape, or numbers that are not finite.
    """
    parameters = dict(model.named_parameters())
    check_shapes(
        path,
        {name: tuple(tensor.shape) for name, tensor in tensors.items()},
        {name: tuple(parameter.shape) for name, parameter in parameters.items()},
    )
    for name, parameter in parameters.items():
        if not tensors[name].isfinite().all():
            raise BundleError(f"{path}: {name} holds numbers that are not finite; it is no model")
        parameter.copy_(tensors[name])


def check_shapes(path: Path, found: Shapes, expected: Shapes) -> None:
    """Check that a file's tensors are just those that its config.json calls for.

    Raises:
        BundleError: names missing or left over, or another shape.
    """
    missing, unknown = expected.keys() - found.keys(), found.keys() - expected.keys()
    if missing or unknown:
        raise BundleError(
            f"{path} does not fit its config.json: missing {sorted(missing)[:3]!r:.200}, "
            f"unknown {sorted(unknown)[:3]!r:.200}"
        )
    for name, shape in expected.items():
        if shape != found[name]:
            raise BundleError(
                f"{path}: {name} has shape {found[name]!r:.80}, config.json says {shape}"
            )


def average(folders: Sequence[Path]) -> dict[str, Tensor]:
    """Mean of the weights of several model directories of one architecture (section 6.1).

    Raises:
        BundleError: their architectures or tokenizers differ.
    """
    first, *others = folders
    config, tokenizers = read_config(first), load_tokenizers(first)
    for other in others:
        its = read_config(other)
        if differing := [key for key in ("architecture", *ABOUT) if its[key] != config[key]]:
            raise BundleError(
                f"{other} cannot be averaged with {first}: "
                f"their config.json differ in {', '.join(differing)}"
            )
        for mine, yours in zip(tokenizers, load_tokenizers(other), strict=True):
            if mine.model != yours.model:
                raise BundleError(
                    f"{other} cannot be averaged with {first}: their tokenizer.model differ"
                )
    shapes, _ = measure(config["architecture"])
    for folder in folders:
        weights = folder / "model.safetensors"
        check_shapes(weights, read_header(weights), shapes)
    # The sums, and beside them a model or the mean.
    _check_memory("an average takes", 12 * sum(map(math.prod, shapes.values())))
    total = {name: torch.zeros(shape, dtype=torch.float64) for name, shape in shapes.items()}
    for folder in folders:
        for name, tensor in read_tensors(folder / "model.safetensors", shapes).items():
            total[name] += tensor
    return {name: (tensor / len(folders)).float() for name, tensor in total.items()}


def read_config(folder: Path) -> dict[str, Any]:
    """Read the config.json of a model directory; its architecture is a TransformerConfig.

    Raises:
        BundleError: missing, damaged, of another format, or settings of no model.
    """
    path = folder / "config.json"
    try:
        config = read_json(path)
    except FileNotFoundError:
        raise BundleError(f"{folder} is not a model: it has no config.json") from None
    except OSError as error:
        raise BundleError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise BundleError(f"{path} is not usable JSON: {error}") from None
    if not isinstance(config.get("architecture"), dict):
        raise BundleError(f"{path} describes no model: it has no 'architecture'")
    found = config.get("format")
    if found != FORMAT or type(found) is not int:
        raise BundleError(f"{path} has format {found!r:.60}; this version reads {FORMAT}")
    for key in ABOUT:
        text = config.setdefault(key, "")
        if not isinstance(text, str) or _SURROGATE.search(text):
            raise BundleError(f"{path}: {key} is not text")
    try:
        config["architecture"] = validate(TransformerConfig, config["architecture"])
    except SettingsError as error:
        raise BundleError(f"{path}: {error}") from None
    return config
