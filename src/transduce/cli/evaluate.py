"""The verbs that judge translations: evaluate (against references), score (by a model)."""

import json
import logging
import platform
from collections.abc import Sequence
from contextlib import nullcontext
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple
from unicodedata import is_normalized

import sacrebleu
import torch
import typer
from rich.console import Console

import transduce
from transduce import bundle
from transduce.cli.options import (
    Alpha,
    BatchTokens,
    Beam,
    Device,
    Threads,
    prepare_machine,
    search_options,
)
from transduce.cli.output import check_apart, opened
from transduce.decode.scorer import SCORED_TOKENS, Scored, perplexity, score_lines
from transduce.decode.search import SearchOptions
from transduce.decode.stream import WINDOW, translate_stream
from transduce.decode.translator import Translation, Translator
from transduce.device import enough_memory
from transduce.errors import DataError, DeviceError, SettingsError
from transduce.evaluate import (
    RESAMPLES,
    SEED,
    TRIALS,
    Difference,
    Evaluation,
    check_tokenizer,
    tokenised_lines,
)
from transduce.evaluate import evaluate as evaluate_systems
from transduce.files import printable
from transduce.progress import Stage, say
from transduce.text.corpus import read_lines, read_references

log = logging.getLogger(__name__)

_OF_A_MODEL = ("source", "output", "beam", "alpha", "batch_tokens", "device", "threads")


class _TestSet(NamedTuple):
    """What is translated, and its references by files or columns of one, which have `names`."""

    sources: list[str]
    columns: list[list[str | None]]
    """None stands where a line of a file has no more columns."""
    names: list[str]

    @property
    def references(self) -> list[tuple[str, ...]]:
        """Of each sentence."""
        rows = zip(*self.columns, strict=True)
        return [tuple(text for text in row if text is not None) for row in rows]


class _System(NamedTuple):
    """Translations to score, and what else is known of them."""

    name: str
    translations: list[str]
    facts: dict[str, Any]


def evaluate(  # noqa: PLR0913 - one parameter an option
    context: typer.Context,
    model: Annotated[
        Path | None,
        typer.Argument(
            help="A model directory, or a training run, to translate with.", show_default=False
        ),
    ] = None,
    source: Annotated[Path | None, typer.Option(help="Text for MODEL to translate.")] = None,
    reference: Annotated[
        list[Path] | None, typer.Option(help="Its translation by people; may be repeated.")
    ] = None,
    tsv: Annotated[
        Path | None, typer.Option(help="Both in one file: source TAB reference TAB ...")
    ] = None,
    hypothesis: Annotated[
        list[Path] | None,
        typer.Option(help="Translations to score, instead of MODEL; may be repeated."),
    ] = None,
    baseline: Annotated[
        Path | None,
        typer.Option(help="Translations to compare the others with [the first hypothesis]."),
    ] = None,
    tokenize: Annotated[
        str,
        typer.Option(
            help="BLEU's tokenizer, by sacreBLEU's names; none for tokenised text; moses-de (or "
            "another language) for Moses' tokens, moses-de-atat for the paper's."
        ),
    ] = "13a",
    lowercase: Annotated[bool, typer.Option("--lowercase", help="Case does not count.")] = False,
    json_: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    output: Annotated[Path | None, typer.Option(help="Keep MODEL's translations here.")] = None,
    beam: Beam = None,
    alpha: Alpha = None,
    batch_tokens: BatchTokens = None,
    device: Device = None,
    threads: Threads = None,
) -> None:
    """Score translations against references: those of a model, or those in files."""
    _check_options(context)
    check_tokenizer(tokenize)
    read = (source, tsv, baseline, *(reference or []))
    check_apart(output, *(path for path in read if path))
    tests = _read_test_set(source, reference or [], tsv)
    systems = [_read_system(path, tests) for path in [baseline, *(hypothesis or [])] if path]
    if model is not None:
        options = search_options(context)
        translator = Translator.load(model, device=prepare_machine(device, threads))
        batch_tokens = batch_tokens or translator.batch_tokens
        with opened(output) if output else nullcontext() as file:
            found = _translate(translator, tests.sources, options, batch_tokens, context.obj)
            if file:
                file.writelines(translation.text + "\n" for translation in found)
        systems.append(_system(model, found, options))
    _warn_of_odd_text(tests, systems, tokenised=tokenize == "none")
    evaluations = evaluate_systems(
        [system.translations for system in systems],
        tests.references,
        tokenize=tokenize,
        lowercase=lowercase,
        console=context.obj,
    )
    with opened(None) as out:
        show = _as_json if json_ else _as_table
        out.write(show(tests, systems, evaluations))


def score(
    context: typer.Context,
    model: Annotated[Path, typer.Argument(help="A model directory, or a training run.")],
    source: Annotated[Path, typer.Option(help="Text.")],
    target: Annotated[Path, typer.Option(help="Its translation, line by line.")],
    format_: Annotated[
        Literal["text", "jsonl"],
        typer.Option("--format", help="Log-probability TAB tokens TAB perplexity, or JSON."),
    ] = "text",
    batch_tokens: Annotated[
        int | None, typer.Option(min=1, help=f"Pieces a side in a batch [{SCORED_TOKENS}].")
    ] = None,
    device: Device = None,
    threads: Threads = None,
) -> None:
    """Say how likely a model finds given translations: a line each, in their order."""
    sources, targets = list(read_lines(source)), list(read_lines(target))
    _check_numbers(str(source), len(sources), str(target), len(targets))
    loaded = bundle.load(model, device=prepare_machine(device, threads))
    batch_tokens = batch_tokens or SCORED_TOKENS
    log_prob, tokens = 0.0, 0
    told = f"with --batch-tokens {batch_tokens}; lower it"
    with opened(None) as out, enough_memory(DeviceError, told):
        # On a terminal the lines themselves are the progress.
        screen = Console(quiet=True) if out.isatty() else context.obj
        with Stage(screen, "scoring", "lines", total=len(sources)) as stage:
            for start in range(0, len(sources), WINDOW):
                ours, theirs = (side[start : start + WINDOW] for side in (sources, targets))
                numbers = range(start + 1, start + 1 + len(ours))
                found = score_lines(
                    loaded, ours, theirs, numbers=numbers, batch_tokens=batch_tokens
                )
                for number, scored in zip(numbers, found, strict=True):
                    out.write(_scored(number, scored, format_))
                    log_prob += scored.log_prob
                    tokens += len(scored.token_log_probs)
                out.flush()
                stage.advance(len(ours))
    say(
        context.obj,
        f"{len(sources):,} translations of {tokens:,} tokens: log-probability {log_prob:.2f}, "
        f"perplexity {perplexity(log_prob, tokens):.4f}",
    )


def _check_options(context: typer.Context) -> None:
    """Refuse what contradicts itself or has nothing to work on."""
    given = {name for name, value in context.params.items() if value not in (None, ())}
    if "model" in given and "hypothesis" in given:
        raise SettingsError(
            "MODEL translates and --hypothesis is translated already; give one of them, and "
            "another system's output as --baseline"
        )
    if not given & {"model", "hypothesis"}:
        raise SettingsError("nothing to score: give MODEL and --source, or --hypothesis")
    if "source" in given and "tsv" in given:
        raise SettingsError("--tsv has the source in it; give it or --source, not both")
    if not given & {"reference", "tsv"}:
        raise SettingsError("nothing to compare with: give --reference (or --tsv)")
    if "model" in given and not given & {"source", "tsv"}:
        raise SettingsError("MODEL has nothing to translate: give --source (or --tsv)")
    if "model" not in given and (idle := [name for name in _OF_A_MODEL if name in given]):
        raise SettingsError(
            f"--{idle[0].replace('_', '-')} is for a MODEL that translates, and none is given"
        )


def _read_test_set(source: Path | None, files: Sequence[Path], tsv: Path | None) -> _TestSet:
    names, sources = [str(path) for path in files], []
    columns: list[list[Any]] = [list(read_lines(path)) for path in files]
    if tsv is not None:
        table = [list(column) for column in zip_longest(*read_references(tsv))] or [[], []]
        sources, columns = table[0], table[1:] + columns
        names = [f"{tsv}, column {number}" for number in range(2, len(table) + 1)] + names
    for name, column in zip(names, columns, strict=True):
        _check_numbers(names[0], len(columns[0]), name, len(column))
    if not any((line or "").strip() for column in columns for line in column):
        raise DataError(f"{names[0]} has no text to compare with")
    for name, column in zip(names, columns, strict=True):
        _warn_of_empty(name, column)
    if source is not None:
        sources = list(read_lines(source))
        _check_numbers(names[0], len(columns[0]), str(source), len(sources))
    return _TestSet(sources, columns, names)


def _read_system(path: Path, tests: _TestSet) -> _System:
    lines = list(read_lines(path))
    _check_numbers(tests.names[0], len(tests.columns[0]), str(path), len(lines))
    return _System(str(path), lines, {"empty": _warn_of_empty(str(path), lines)})


def _system(model: Path, found: list[Translation], options: SearchOptions) -> _System:
    texts = [translation.text for translation in found]
    facts = {
        "empty": _warn_of_empty(f"the output of {model}", texts),
        "source_cut": sum(translation.source_cut for translation in found),
        "output_cut": sum(translation.output_cut for translation in found),
        "beam": options.beam,
        "alpha": options.alpha,
    }
    return _System(str(model), texts, facts)


def _check_numbers(one: str, lines: int, other: str, others: int) -> None:
    if lines != others:
        raise DataError(
            f"{one} has {lines} lines and {other} has {others};"
            " line k of one must belong to line k of the other"
        )


def _warn_of_empty(name: str, lines: Sequence[str | None]) -> int:
    empty = sum(1 for line in lines if line is not None and not line.strip())
    if empty:
        log.warning("%s: %d of %d lines are empty, and scored as they are", name, empty, len(lines))
    return empty


def _warn_of_odd_text(tests: _TestSet, systems: Sequence[_System], *, tokenised: bool) -> None:
    """Warn of what makes scores lower or not comparable; `tokenised` text may be meant."""
    texts = {system.name: system.translations for system in systems}
    for name, column in zip(tests.names, tests.columns, strict=True):
        texts[name] = [line or "" for line in column]
    for name, lines in texts.items():
        if odd := [n for n, line in enumerate(lines, 1) if not is_normalized("NFC", line)]:
            log.warning(
                "%s: %d of %d lines are not in Unicode NFC, as all is that transduce writes (line "
                "%d first): the same letters do not match; convert it",
                name, len(odd), len(lines), odd[0],
            )  # fmt: skip
        if not tokenised and (signs := tokenised_lines(lines)):
            log.warning(
                "%s looks tokenised (%.0f %% of its lines, line %d first): its scores compare with "
                "no others; detokenise it, or say --tokenize none if that is meant",
                name, 100 * len(signs) / len(lines), signs[0],
            )  # fmt: skip


def _translate(
    translator: Translator,
    sources: list[str],
    options: SearchOptions,
    batch_tokens: int,
    console: Console,
) -> list[Translation]:
    found: list[Translation] = []
    told = f"with --batch-tokens {batch_tokens} and --beam {options.beam}; lower one of them"
    with (
        enough_memory(DeviceError, told),
        Stage(console, "translating", "lines", total=len(sources)) as stage,
    ):
        for window in translate_stream(
            translator, sources, options=options, batch_tokens=batch_tokens, pause=None
        ):
            found += window
            stage.advance(len(window))
    return found


def _as_json(tests: _TestSet, systems: Sequence[_System], evaluations: Sequence[Evaluation]) -> str:
    record = {
        "sentences": len(tests.columns[0]),
        "references": tests.names,
        "systems": [
            {
                "name": system.name,
                **system.facts,
                "scores": {name: value._asdict() for name, value in found.scores.items()},
                "differences": {
                    name: {**value._asdict(), "significant": value.significant}
                    for name, value in found.differences.items()
                },
            }
            for system, found in zip(systems, evaluations, strict=True)
        ],
        "interval": {"method": "bootstrap", "level": 95, "resamples": RESAMPLES, "seed": SEED},
        "test": {
            "method": "approximate randomisation",
            "baseline": systems[0].name if len(systems) > 1 else None,
            "trials": TRIALS,
            "seed": SEED,
        },
        "versions": {
            "transduce": transduce.__version__,
            "sacrebleu": sacrebleu.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
    }
    return json.dumps(record, ensure_ascii=False, indent=2, allow_nan=False) + "\n"


def _as_table(
    tests: _TestSet, systems: Sequence[_System], evaluations: Sequence[Evaluation]
) -> str:
    numbers = [len(references) for references in tests.references]
    fewest, most = min(numbers), max(numbers)
    against = f"{fewest} to {most}" if fewest < most else f"{most}"
    against += " references" if most > 1 else " reference"
    lines = []
    for system, found in zip(systems, evaluations, strict=True):
        lines.append(f"{system.name}: {len(numbers):,} sentences, {against}")
        for name, value in found.scores.items():
            lines.append(
                f"  {name:<11} {value.value:6.2f} ± {value.interval:<5.2f} {value.signature}"
            )
    for system, found in zip(systems[1:], evaluations[1:], strict=True):
        lines.append(
            f"{system.name} against {systems[0].name} "
            f"(approximate randomisation, {TRIALS:,} trials, seed {SEED})"
        )
        for name, value in found.differences.items():
            lines.append(f"  {name:<11} {value.value:+6.2f}   {_verdict(value)}")
    return "".join(printable(line) + "\n" for line in lines)


def _verdict(difference: Difference) -> str:
    p = f"p = {difference.p_value:.4f}"
    if not difference.significant:
        return f"no difference that this test set shows, {p}"
    return f"{'better' if difference.better else 'worse'}, {p}"


def _scored(number: int, scored: Scored, format_: str) -> str:
    if format_ == "text":
        count = len(scored.token_log_probs)
        return f"{scored.log_prob:.6f}\t{count}\t{scored.perplexity:.4f}\n"
    record = {
        "line": number,
        "log_prob": scored.log_prob,
        "perplexity": scored.perplexity,
        **scored._asdict(),
    }
    return json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n"
