"""The verbs about finished models: info, average."""

import json
import math
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from transduce import bundle
from transduce.errors import BundleError, RunError
from transduce.files import plain, printable, read_plain, sha256, whole_folder
from transduce.train import checkpoint
from transduce.train.monitor import read_metrics, say

_LARGEST_CARD = 1 << 18
_LARGEST_METRICS = 1 << 28
_LINES_OF_A_CARD = 20
_SCORES = "Scores on the validation set"  # see train/card.py


def average(
    context: typer.Context,
    models: Annotated[
        list[Path], typer.Argument(help="A training run, or several model directories.")
    ],
    out: Annotated[Path, typer.Option(help="Folder of the new model.")],
    last: Annotated[
        int | None, typer.Option(min=1, help="How many of a run's last checkpoints [5].")
    ] = None,
) -> None:
    """Write the mean of a run's last checkpoints, or of several models, as a model of its own."""
    sources = write_average(models, out, last)
    names = ", ".join(source["name"] for source in sources)
    say(context.obj, f"the mean of {names} is in {out}")


def write_average(models: list[Path], out: Path, last: int | None) -> list[dict[str, Any]]:
    """Write the mean of models in a new folder, and return what its config.json says of them.

    Raises:
        BundleError: there is something in `out`, or what is given cannot be averaged.
        RunError: a training removed a checkpoint while it was read.
    """
    if os.path.lexists(out):
        raise BundleError(f"--out {out} exists; remove it, or name another folder")
    if len(models) == 1:
        folders = _last_checkpoints(models[0], last or 5)
    elif last is not None:
        raise BundleError("--last counts the checkpoints of one run; several models are given")
    else:
        folders = [bundle.find(model) for model in models]
    try:
        sources = [_source(folder) for folder in folders]
        mean = bundle.load(folders[-1])
        tensors = bundle.average(folders)
        card = _read_card(folders[-1])
    except (BundleError, OSError) as error:
        if gone := [folder for folder in folders if not folder.exists()]:
            raise RunError(
                f"{gone[0]} was removed while it was read: a training is at work there; "
                "try again, with a smaller --last if need be"
            ) from None
        raise BundleError(str(error)) from None
    bundle.put_weights(mean.model, tensors, folders[-1])
    try:
        with whole_folder(out) as beside:
            bundle.save(beside, mean, _average_card(sources, card), sources=sources)
    except OSError as error:
        raise BundleError(f"--out {out} cannot be written: {error.strerror}") from None
    return sources


def _last_checkpoints(run: Path, last: int) -> list[Path]:
    if not (run / "checkpoints").is_dir():
        raise BundleError(f"{run} is no training run; name one, or several models")
    steps = checkpoint.steps(run)
    if len(steps) < last:
        there = ", ".join(f"{step:,}" for step in steps)
        raise BundleError(
            f"{run} has {len(steps)} checkpoints{f' (steps {there})' if steps else ''}, "
            f"--last asks for {last}; a run keeps its newest, its best and train.average_last"
        )
    folders = [checkpoint.path(run, step) for step in steps[-last:]]
    for folder in folders:
        if not folder.resolve().is_relative_to(run.resolve()):
            raise BundleError(f"{folder} leads out of the run; remove it")
    return folders


def _source(folder: Path) -> dict[str, Any]:
    """What names a source for good: its step, if it is a checkpoint, and its weights' sha256."""
    weights = folder / "model.safetensors"
    name = folder.resolve().name
    return {"name": printable(name), "step": _step(name), "sha256": sha256(plain(weights))}


def _step(name: str) -> int | None:
    match = re.fullmatch(r"step-([0-9]{1,12})", name)
    return int(match[1]) if match else None


def _average_card(sources: list[dict[str, Any]], card: str) -> str:
    listed = "\n".join(f"- {s['name']}: model.safetensors sha256 {s['sha256']}" for s in sources)
    return f"""# A mean of {len(sources)} models

Each weight is the mean of those of (section 6.1 of the paper):

{listed}

It has not been validated. The card of the last of them follows.

---

{card.replace(f"## {_SCORES}", f"## {_SCORES} of the last of them")}"""


def info(
    model: Annotated[Path, typer.Argument(help="A model directory, or a training run.")],
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Tell what a model is: its parts and size, languages, scores, text, and place in a run."""
    facts = describe(model)
    if as_json:
        typer.echo(json.dumps(facts, indent=2))
    else:
        typer.echo(table(facts))


def describe(path: Path) -> dict[str, Any]:
    """Return what a model directory, or a run's best, tells of itself; its weights are not loaded.

    Raises:
        BundleError: it is not usable.
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
    card = _read_card(folder)
    files = [file for file in folder.iterdir() if file.is_file() and not file.is_symlink()]
    return {
        "folder": str(folder.resolve()),
        "source_language": config["source_language"],
        "target_language": config["target_language"],
        "licence": config["licence"],
        "architecture": architecture.model_dump(mode="json"),
        "parameters": parts | {"all": sum(parts.values())},
        "vocabulary": {"source": source.size, "target": target.size, "shared": source is target},
        "weights": {"sha256": sha256(weights), "bytes": weights.stat().st_size},
        "bytes": sum(file.stat().st_size for file in files),
        "average_of": config.get("average_of", []),
        "run": _run(folder),
        "scores": _section(card, _SCORES),
        "text": _section(card, "Text"),
    }


def _run(folder: Path) -> dict[str, Any] | None:
    """Where in a training run a model is, or None: a copy does not know."""
    folder = folder.resolve()
    run = folder.parent.parent
    metrics = run / "metrics.jsonl"
    if folder.parent.name != "checkpoints" or not metrics.is_file():
        return None
    try:
        size = plain(metrics).stat().st_size
    except OSError:
        return None
    records = read_metrics(metrics) if size <= _LARGEST_METRICS else []
    last = records[-1] if records else {}
    return {
        "folder": str(run),
        "step": _step(folder.name),
        "last_step": last.get("step", 0),
        "finished": bool(last.get("finished")),
        "best": (run / "best").resolve() == folder,
    }


def _read_card(folder: Path) -> str:
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


def table(facts: dict[str, Any]) -> str:
    """What `describe` has found, for people."""
    return "\n".join(printable(f"{name:<14}{value}") for name, value in _rows(facts))


def _rows(facts: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The facts for people: a name, and a value a line."""
    a, parts = facts["architecture"], facts["parameters"]
    languages = (facts["source_language"], facts["target_language"])
    yield "model", facts["folder"]
    yield "languages", " to ".join(languages) if all(languages) else "not stated"
    yield "licence", facts["licence"] or "not stated"
    yield (
        "architecture",
        (f"Transformer, {a['encoder_layers']} encoder and {a['decoder_layers']} decoder layers"),
    )
    yield "", f"d_model {a['d_model']}, {a['heads']} heads of {a['d_k']}, d_ff {a['d_ff']}"
    yield "", f"{a['norm']}-norm, {a['activation']}, dropout {a['dropout']}"
    yield "", f"{a['positions']} positions, {a['max_length']:,} at most"
    yield "parameters", f"{parts['all']:,}"
    for part, size in parts.items():
        if part != "all":
            yield "", f"{size:>13,}  {100 * size / parts['all']:5.1f} %  {part}"
    words = facts["vocabulary"]
    shared = "for both languages" if words["shared"] else f"and {words['target']:,}"
    tied = {
        "all": "one table for source, target and output",
        "decoder": "one table for target and output",
        "none": "three tables",
    }
    yield "vocabulary", f"{words['source']:,} subwords {shared}, {tied[a['tie']]}"
    yield "size", f"{facts['bytes'] / 1e6:,.1f} MB on disk"
    yield "sha256", facts["weights"]["sha256"]
    if facts["average_of"]:
        yield "average of", ", ".join(_names(facts["average_of"]))
    if run := facts["run"]:
        at = f"step {run['step']:,}" if run["step"] is not None else "the average of its last ones"
        end = "finished" if run["finished"] else "not finished"
        best = ", its best" if run["best"] else ""
        yield "run", run["folder"]
        yield "", f"{at}{best}; the run is at step {run['last_step']:,}, {end}"
    for title in ("scores", "text"):
        for number, line in enumerate(facts[title] or ["not stated"]):
            yield "" if number else title, line


def _names(sources: Any) -> list[str]:  # noqa: ANN401 - whatever a stranger wrote
    if not isinstance(sources, list):
        return ["something that is no list"]
    return [str(s.get("name", "?"))[:80] if isinstance(s, dict) else "?" for s in sources[:20]]
