"""The verbs about finished models: info, average."""

import json
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from transduce.cli.output import opened
from transduce.files import printable
from transduce.progress import say
from transduce.train.average import write_average
from transduce.train.describe import describe

_NAMES, _VALUES = 14, 66  # columns


def average(
    context: typer.Context,
    models: Annotated[
        list[Path], typer.Argument(help="A training run, or several model directories.")
    ],
    out: Annotated[Path, typer.Option(help="Folder of the new model.")],
    last: Annotated[
        int | None,
        typer.Option(min=1, help="How many of a run's last checkpoints [all, at most 5]."),
    ] = None,
) -> None:
    """Write the mean of a run's last checkpoints, or of several models, as a model of its own."""
    sources = write_average(models, out, last)
    names = ", ".join(source["name"] for source in sources)
    say(context.obj, printable(f"the mean of {names} is in {out}"))


def info(
    model: Annotated[Path, typer.Argument(help="A model directory, or a training run.")],
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Tell what a model is: its parts and size, languages, scores, text, and place in a run."""
    facts = describe(model)
    with opened(None) as out:
        out.write(f"{json.dumps(facts, indent=2) if as_json else table(facts)}\n")


def table(facts: dict[str, Any]) -> str:
    """What `describe` has found, for people and 80 columns."""
    return "\n".join(
        f"{'' if number else name:<{_NAMES}}{line}"
        for name, value in _rows(facts)
        for number, line in enumerate(
            textwrap.wrap(
                printable(value),
                _VALUES,
                break_long_words=False,
                break_on_hyphens=False,
                drop_whitespace=not value.startswith(" "),
            )
        )
    )


def _rows(facts: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The facts for people: a name, and a value."""
    a, parts = facts["architecture"], facts["parameters"]
    languages = (facts["source_language"], facts["target_language"])
    yield "model", facts["folder"]
    stated = [language or "(not stated)" for language in languages]
    yield "languages", " to ".join(stated) if any(languages) else "not stated"
    yield "licence", facts["licence"] or "not stated"
    if facts["note"]:
        yield "note", facts["note"]
    yield (
        "architecture",
        f"Transformer, {a['encoder_layers']} encoder and {a['decoder_layers']} decoder layers",
    )
    yield "", f"d_model {a['d_model']}, {a['heads']} heads of {a['d_k']}, d_ff {a['d_ff']}"
    yield "", f"{a['norm']}-norm, {a['activation']}, dropout {a['dropout']}"
    yield "", f"{a['positions']} positions, {a['max_length']:,} at most"
    yield "parameters", f"{parts['all']:,}"
    for part, size in parts.items():
        if part != "all":
            yield "", f"{size:>13,}  {100 * size / parts['all']:5.1f} %  {part}"
    words = facts["vocabulary"]
    yield (
        "vocabulary",
        f"{words['source']:,} subwords for both languages"
        if words["shared"]
        else f"{words['source']:,} subwords for the source, {words['target']:,} for the target",
    )
    tied = {
        "all": "one table for source, target and output",
        "decoder": "one table for target and output",
        "none": "three tables",
    }
    yield "", tied[a["tie"]]
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
            # --json and the card have the whole of a sum.
            yield "" if number else title, re.sub(r"\b([0-9a-f]{16})[0-9a-f]{48}\b", r"\1...", line)


def _names(sources: Any) -> list[str]:  # noqa: ANN401 - whatever a stranger wrote
    if not isinstance(sources, list):
        return ["something that is not a list"]
    return [str(s.get("name", "?"))[:80] if isinstance(s, dict) else "?" for s in sources[:20]]
