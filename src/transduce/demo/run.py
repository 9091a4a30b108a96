"""The steps of `transduce demo`: write the corpus, train, show what was learnt and what next."""

from collections import Counter
from pathlib import Path

from rich.console import Console
from rich.table import Table

from transduce.config import validate
from transduce.decode.search import SearchOptions
from transduce.decode.translator import Translator
from transduce.demo.draw import Sentence
from transduce.demo.grammar import EXAMPLES, FAMILIES, corpus
from transduce.evaluate import exact_match
from transduce.files import whole_folder
from transduce.train import run
from transduce.train.config import TrainConfig
from transduce.train.start import train

SEED = 1
NOTE = "learnt a generated grammar"
SETTINGS = {
    "model": {
        "preset": "tiny",
        "d_model": 96,
        "d_ff": 384,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "dropout": 0.0,
    },
    "tokenizer": {"vocab_size": 1300},
    "train": {
        "max_steps": 2400,
        "batch_tokens": 2048,
        "warmup": 1000,
        "learning_rate_scale": 0.7,
        "validate_every": 400,
        "save_every": 100,
        "snapshots": True,
        "log_every": 200,
        "average_last": 3,
        "patience": 0,
    },
}
"""Chosen for two minutes on two cores. The steps are fixed, not the seconds; without dropout, as
what is generated has no noise to learn by heart."""


def learn(out: Path, console: Console) -> None:
    """Train on the generated corpus in `out`, or go on.

    Raises:
        RunError: `out` is something else.
        Stopped: asked to stop; the same call goes on.
    """
    with run.locked(out):
        files = _write_corpus(out / "corpus")
    console.print(
        "The corpus is generated: a small English-French grammar with exact references, in "
        "which [i]it[/i] is [i]il[/i] or [i]elle[/i] by what it refers to. Whole combinations "
        "of words are held out, so what counts below is sentences that were never seen."
    )
    settings = SETTINGS | {"out": str(out), "seed": SEED, "licence": "Apache-2.0"}
    settings |= {"source_language": "en", "target_language": "fr", "note": NOTE}
    train(validate(TrainConfig, settings | files), console=console)


def show(out: Path, results: Console) -> float:
    """Show what was learnt in `out`, and what next; return the exact match in percent."""
    translator = Translator.load(out)
    test = corpus(SEED).test
    options = SearchOptions()
    found = translator.translate_lines([sentence.source for sentence in test], options)
    texts = [translation.text for translation in found]
    score = exact_match(texts, [sentence.target for sentence in test])
    results.print(
        f"\n[b]{score.value:.1f} %[/b] of {len(test):,} held-out sentences are exactly right.\n"
    )
    results.print(_by_family(test, texts), "")
    results.print(_examples(translator))
    _say_next(out, results)
    return score.value


def _write_corpus(folder: Path) -> dict[str, str]:
    """Write {train,valid,test}.{en,fr} if they are not there; return the settings for them."""
    if not folder.exists():
        with whole_folder(folder, replace=False) as beside:
            for name, sentences in corpus(SEED)._asdict().items():
                for language, side in (("en", "source"), ("fr", "target")):
                    lines = "".join(getattr(sentence, side) + "\n" for sentence in sentences)
                    (beside / f"{name}.{language}").write_text(
                        lines, encoding="utf-8", newline="\n"
                    )
    return {
        "source": str(folder / "train.en"),
        "target": str(folder / "train.fr"),
        "valid_source": str(folder / "valid.en"),
        "valid_target": str(folder / "valid.fr"),
    }


def _by_family(test: list[Sentence], texts: list[str]) -> Table:
    table = Table("kind of sentence", "exact", "of", "an error, if any", box=None, pad_edge=False)
    right: Counter[str] = Counter()
    total: Counter[str] = Counter()
    wrong: dict[str, str] = {}
    for sentence, text in zip(test, texts, strict=True):
        total[sentence.family] += 1
        right[sentence.family] += text == sentence.target
        if text != sentence.target:
            wrong.setdefault(sentence.family, f"{text}  (not: {sentence.target})")
    for family in FAMILIES:
        table.add_row(family, str(right[family]), str(total[family]), wrong.get(family, ""))
    return table


def _examples(translator: Translator) -> Table:
    table = Table("three sentences to look at", "", box=None, pad_edge=False)
    for example in EXAMPLES:
        (found,) = translator.translate_lines([example.source], SearchOptions())
        mark = "" if found.text == example.target else f"  (not: {example.target})"
        table.add_row(example.source, found.text + mark)
    return table


def _say_next(out: Path, console: Console) -> None:
    console.print(
        f"""
This model knows a few hundred words of a grammar; it is for looking inside, not for translating.
Try it:              transduce translate {out}
Look inside:         transduce view {out}
Look at the text:    {out / "corpus"}
With your own text (line k of one file is the translation of line k of the other):
                     transduce train --source my.en --target my.fr --out my-model
                     transduce translate my-model < some-text
(If the shell does not find transduce: . .venv/bin/activate)
""",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
