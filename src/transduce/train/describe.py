"""What a finished model tells of itself: parts and size, scores, text, and its place in a run."""

import math
import re
from pathlib import Path
from typing import Any

from transduce import bundle
from transduce.errors import BundleError
from transduce.files import last_json_line, read_plain, sha256
from transduce.train.card import SCORES, TEXT

_LARGEST_CARD = 1 << 18
_LINES_OF_A_CARD = 20


def describe(path: Path) -> dict[str, Any]:
    """Return what a model directory, or a run's best, tells of itself; its weights are not loaded.

    Raises:
        BundleError, TokenizerError: it is not usable.
    """
    folder = bundle.find(path)
    config = bundle.read_config(folder)
    architecture = config["architecture"]
    shapes, _ = bundle.measure(architecture)
    weights = folder / "model.safetensors"
    bundle.check_shapes(weights, bundle.read_header(weights), shapes)
    source, target = bundle.load_tokenizers(folder, architecture)
    parts: dict[str, int] = {}
    for name, shape in shapes.items():
        part = re.split(r"[._]", name.replace("source_", "").replace("target_", ""))[0]
        parts[part] = parts.get(part, 0) + math.prod(shape)
    card = read_card(folder)
    files = [file for file in folder.iterdir() if file.is_file() and not file.is_symlink()]
    return {
        "folder": str(folder.resolve()),
        "source_language": config["source_language"],
        "target_language": config["target_language"],
        "licence": config["licence"],
        "note": config["note"],
        "architecture": architecture.model_dump(mode="json"),
        "parameters": parts | {"all": sum(parts.values())},
        "vocabulary": {"source": source.size, "target": target.size, "shared": source is target},
        "weights": {"sha256": sha256(weights), "bytes": weights.stat().st_size},
        "bytes": sum(file.stat().st_size for file in files),
        "average_of": config.get("average_of", []),
        "run": _run(folder),
        "scores": _section(card, SCORES),
        "text": _section(card, TEXT),
    }


def step_of(folder: Path) -> int | None:
    """The step of a checkpoint's folder, which bears it as its name; of another folder None."""
    match = re.fullmatch(r"step-([0-9]{1,12})", folder.resolve().name)
    return int(match[1]) if match else None


def read_card(folder: Path) -> str:
    """Read a model's card, which may be a stranger's; empty where there is none.

    Raises:
        BundleError: it is too large, or not a file of this folder.
    """
    path = folder / "model_card.md"
    try:
        return read_plain(path, _LARGEST_CARD).decode("utf-8", errors="replace")
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise BundleError(f"{path}: {error.strerror}") from None


def _section(card: str, title: str) -> list[str]:
    """The lines of a card's section, from one heading to the next."""
    match = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^#|\Z)", card, re.MULTILINE | re.DOTALL)
    lines = match[1].splitlines() if match else []
    return [line.removeprefix("- ") for line in lines if line.strip()][:_LINES_OF_A_CARD]


def _run(folder: Path) -> dict[str, Any] | None:
    """Where in a training run a model is, or None: a copy does not know."""
    folder = folder.resolve()
    run = folder.parent.parent
    metrics = run / "metrics.jsonl"
    if folder.parent.name != "checkpoints" or not metrics.is_file():
        return None
    try:
        last = last_json_line(metrics, "step")
    except OSError:
        last = {}
    return {
        "folder": str(run),
        "step": step_of(folder),
        "last_step": last.get("step", 0),
        "finished": bool(last.get("finished")),
        "best": (run / "best").resolve() == folder,
    }
