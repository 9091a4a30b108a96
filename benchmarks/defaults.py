"""What is chosen for the size of a corpus, beside a short search: does choosing nothing cost much?

    python benchmarks/defaults.py --data-root DATA [--corpus multi30k-5k] [--trial small]

Each trial changes one thing of what `train` chooses by itself; `base` is the paper's base model,
with its own dropout. The table has the BLEU on the validation set of what a run calls its best.
Runs lie in --out. A finished one is not trained again, one that was stopped goes on: stop and start
the program as you like, or run it several times at once with other trials.
"""

import argparse
import gzip
import time
from pathlib import Path

from rich.console import Console

from transduce import TrainConfig, train
from transduce.config import load
from transduce.train.start import finished

TRIALS = {
    "default": [],
    "half the subwords": ["tokenizer.vocab_size={half}"],
    "twice the subwords": ["tokenizer.vocab_size={twice}"],
    "dropout 0.1 less": ["model.dropout={less:.1f}"],
    "dropout 0.1 more": ["model.dropout={more:.1f}"],
    "the other norm and average": ["model.norm={norm}", "train.ema_decay={average}"],
    "small": ["model.preset=small", "model.dropout=0.3", "model.norm=pre", "train.ema_decay=0.999"],
    "base": ["model.preset=base"],
}
CORPORA = {
    "multi30k-5k": (4_000, 0.3, "pre", 0.999),
    "multi30k-29k": (7_000, 0.2, "post", 0),
    "tatoeba-55k": (8_000, 0.2, "post", 0),
}
"""With the subwords and the dropout that are chosen for each, and norm and average that are not."""


def main() -> None:
    """Train what is missing, and print the table of what is there."""
    parser = argparse.ArgumentParser(description="What is chosen by default beside a search.")
    parser.add_argument("--data-root", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("defaults-search"))
    parser.add_argument("--corpus", choices=CORPORA, action="append")
    parser.add_argument("--trial", choices=TRIALS, action="append")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--only-table", action="store_true")
    given = parser.parse_args()
    for corpus in given.corpus or CORPORA:
        text = files(corpus, given.data_root, given.out)
        subwords, dropout, norm, average = CORPORA[corpus]
        values = {"half": subwords // 2, "twice": subwords * 2, "norm": norm, "average": average}
        values |= {"less": dropout - 0.1, "more": dropout + 0.1}
        for trial in () if given.only_table else given.trial or TRIALS:
            changes = [change.format(**values) for change in TRIALS[trial]]
            one(changes, {**text, "out": given.out / corpus / trial, "threads": given.threads})
        table(given.out / corpus)


def files(corpus: str, root: Path, out: Path) -> dict[str, Path]:
    """Return the text files of a corpus; the first 5,000 pairs of Multi30k are written in `out`."""
    if corpus == "tatoeba-55k":
        folder = root / "tatoeba.en-fr"
        return {"tsv": folder / "train.tsv.gz", "valid_tsv": folder / "dev.tsv.gz"}
    raw = root / "multi30k" / "raw"
    found = {}
    for side, language in (("source", "en"), ("target", "de")):
        found[f"valid_{side}"] = raw / f"val.{language}.gz"
        found[side] = raw / f"train.{language}.gz"
        if corpus == "multi30k-5k":
            lines = gzip.decompress(found[side].read_bytes()).split(b"\n")[:5_000]
            found[side] = out / corpus / f"train.{language}"
            found[side].parent.mkdir(parents=True, exist_ok=True)
            found[side].write_bytes(b"\n".join(lines) + b"\n")
    return found


def one(changes: list[str], values: dict[str, object]) -> None:
    """Train one trial, and note its time beside it, also where it is stopped."""
    run = values["out"]
    if finished(run):
        return
    began = time.monotonic()
    try:
        train(load(TrainConfig, None, changes, values=values), console=Console(stderr=True))
    finally:
        with beside(run).open("a") as noted:
            noted.write(f"{time.monotonic() - began:.0f}\n")


def beside(run: Path) -> Path:
    """Where a run's seconds are; the names of runs have points in them."""
    return run.with_name(f"{run.name}.seconds")


def table(folder: Path) -> None:
    """Print what the finished runs of a corpus have reached, the default first."""
    print(f"\n**{folder.name}**\n")
    print("| trial | BLEU | against the default | minutes |\n|---|---|---|---|")
    default = finished(folder / "default")
    for trial in TRIALS:
        if result := finished(folder / trial):
            gain = f"{result.bleu.value - default.bleu.value:+.2f}" if default else ""
            minutes = sum(map(int, beside(folder / trial).read_text().split())) / 60
            print(f"| {trial} | {result.bleu.value:.2f} | {gain} | {minutes:.0f} |")


if __name__ == "__main__":
    main()
