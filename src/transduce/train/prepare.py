"""From text files to a run's data folder: filtered, counted, tokenized, encoded; validation aside.

data/  tokenizer.model (or source.model, target.model)  train/ (the store)  valid.jsonl  report.json
"""

import itertools
import json
import math
import os
from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from transduce import bundle
from transduce.data import store
from transduce.errors import DataError, RunError, TransduceError
from transduce.files import plain, read_json, sha256, whole_folder
from transduce.text.corpus import (
    Pair,
    Report,
    digest,
    filter_lengths,
    filter_text,
    read_lines,
    read_pairs,
    read_references,
    read_tsv,
)
from transduce.text.tokenizer import Tokenizer, train_tokenizer
from transduce.train.config import TrainConfig
from transduce.train.defaults import choose_vocab_size

_HELD_OUT_AT_MOST = 2_000
_HELD_OUT_SHARE = 0.02
_ENCODED_AT_ONCE = 10_000
_FILE = ("name", "sha256")


class Example(NamedTuple):
    """A validation sentence and the translations it is compared with; the first gives the loss."""

    source: str
    references: tuple[str, ...]


class Data(NamedTuple):
    """A run's data folder, opened."""

    source_tokenizer: Tokenizer
    target_tokenizer: Tokenizer
    train: store.Store
    valid: list[Example]
    report: dict[str, Any]

    @property
    def sizes(self) -> tuple[int, int]:
        """Of the source's and the target's vocabulary."""
        return self.source_tokenizer.size, self.target_tokenizer.size


def open_data(folder: Path) -> Data:
    """Open a data folder that `prepare` made.

    Raises:
        RunError: something in it is missing or damaged.
    """
    try:
        records = map(json.loads, read_lines(plain(folder / "valid.jsonl")))
        valid = [Example(record["source"], tuple(record["references"])) for record in records]
        report = read_json(folder / "report.json")
        if missing := {"lines", "files", "training_tokens"} - report.keys():
            raise ValueError(f"report.json lacks {', '.join(sorted(missing))}")
        card = [*report["lines"], *(f[k] for f in report["files"].values() for k in _FILE)]
        texts = [text for example in valid for text in (example.source, *example.references)]
        if not all(isinstance(text, str) for text in (*card, *texts)):
            raise ValueError("report.json or valid.jsonl holds what is no text")
        if not valid or not all(example.references for example in valid):
            raise ValueError("valid.jsonl is empty, or a line of it")
        data = Data(
            *bundle.load_tokenizers(folder), store.Store.open(folder / "train"), valid, report
        )
        if any(id >= size for id, size in zip(data.train.largest(), data.sizes, strict=True)):
            raise ValueError("train holds ids that the tokenizer does not have")
    except RecursionError:
        raise RunError(f"{folder} is damaged (nested too deeply); train in another --out") from None
    except (TransduceError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunError(f"{folder} is damaged ({error}); train in another --out") from None
    return data


def prepare(config: TrainConfig, folder: Path, files: dict[str, dict[str, str]]) -> Data:
    """Make the data folder of a run, whole or not at all, in place of any that is there.

    `files` are the `fingerprints` of the text, for the report.

    Raises:
        DataError: files that cannot be used, or nothing left of them.
        TokenizerError: a vocabulary that the text cannot give.
    """
    with whole_folder(folder) as beside:
        _make(config, beside, files)
    return open_data(folder)


def fingerprints(config: TrainConfig) -> dict[str, dict[str, str]]:
    """Base name and sha256 of each text file, by the name of its setting.

    Raises:
        DataError: a file that cannot be read.
    """
    for name, path in config.text_files().items():
        if path.exists() and not path.is_file():
            raise DataError(
                f"--{name.replace('_', '-')} {path} is no regular file; training reads a text more "
                "than once, so save it first"
            )
    try:
        return {
            name: {
                "name": os.fsencode(path.name).decode("utf-8", "replace"),
                "sha256": sha256(path),
            }
            for name, path in config.text_files().items()
        }
    except OSError as error:
        raise DataError(f"{error.filename}: cannot be read ({error.strerror})") from None


def _make(config: TrainConfig, folder: Path, files: dict[str, dict[str, str]]) -> None:
    examples, empty = _read_validation(config)
    report = Report()
    known = {digest(Pair(e.source, text)) for e in examples for text in e.references}
    spool = _Spool(folder)
    spool.write(filter_text(_read_training(config), config.data, report=report, validation=known))
    if not spool.count:
        raise DataError("; ".join(["no pair is left to learn from", *report.lines()]))
    if not examples:
        examples = spool.hold_out()
    tokenizers = _train_tokenizers(config, spool, folder)
    pairs = filter_lengths(_encode(spool, *tokenizers), config.data, report=report)
    try:
        written = store.write(
            folder / "train", pairs, vocab_size=max(tokenizer.size for tokenizer in tokenizers)
        )
    except DataError:
        raise DataError("; ".join(["no pair is left to learn from", *report.lines()])) from None
    spool.remove()
    with (folder / "valid.jsonl").open("w", encoding="utf-8", newline="\n") as file:
        for example in examples:
            file.write(json.dumps(example._asdict(), ensure_ascii=False) + "\n")
    tokens = written.lengths.sum(axis=0, dtype=np.int64).tolist()
    summary = report.as_dict() | {
        "training": len(written),
        "training_tokens": {"source": tokens[0], "target": tokens[1]},
        "validation": len(examples),
        "validation_empty": empty,
        "held_out": not known,
        "files": files,
        "lines": _for_people(report, examples, empty, held_out=not known),
    }
    text = json.dumps(summary, indent=2, ensure_ascii=False)
    (folder / "report.json").write_text(text + "\n", encoding="utf-8")


def _for_people(
    report: Report, examples: list[Example], empty: int, *, held_out: bool
) -> list[str]:
    origin = "held out of them by a hash of the pair" if held_out else "read"
    lines = [*report.lines(), f"{len(examples):,} validation pairs {origin}"]
    if empty:
        lines.append(f"{empty:,} validation pairs dropped: a side is empty")
    return lines


class _Spool:
    """The pairs that passed the filters of text, on disk: read once, used twice."""

    def __init__(self, folder: Path) -> None:
        self.paths = (folder / "kept.source", folder / "kept.target")
        self.characters: set[str] = set()
        self._digests = array("Q")
        self._held_out_to = -1

    def write(self, pairs: Iterable[Pair]) -> None:
        with (
            self.paths[0].open("w", encoding="utf-8", newline="\n") as source,
            self.paths[1].open("w", encoding="utf-8", newline="\n") as target,
        ):
            for pair in pairs:
                source.write(pair.source + "\n")
                target.write(pair.target + "\n")
                self._digests.append(digest(pair))
                self.characters.update(pair.source, pair.target)

    @property
    def count(self) -> int:
        """Pairs written, those that are held out among them."""
        return len(self._digests)

    def hold_out(self) -> list[Example]:
        """Set aside the pairs with the smallest digests, all copies of a pair together."""
        if len(set(self._digests)) < 2:
            raise DataError(f"too few different pairs to learn from and validate, of {self.count}")
        wanted = min(_HELD_OUT_AT_MOST, math.ceil(self.count * _HELD_OUT_SHARE))
        self._held_out_to = sorted(self._digests)[wanted - 1]
        held_out = {pair: None for pair, held in self._marked() if held}
        return [Example(pair.source, (pair.target,)) for pair in held_out]

    def pairs(self) -> Iterator[Pair]:
        """The pairs to learn from."""
        return (pair for pair, held in self._marked() if not held)

    def _marked(self) -> Iterator[tuple[Pair, bool]]:
        for pair, key in zip(read_pairs(*self.paths), self._digests, strict=True):
            yield pair, key <= self._held_out_to

    def remove(self) -> None:
        for path in self.paths:
            path.unlink()


def _read_training(config: TrainConfig) -> Iterator[Pair]:
    if config.tsv is not None:
        return read_tsv(config.tsv)
    assert config.source is not None
    assert config.target is not None
    return read_pairs(config.source, config.target)


def _read_validation(config: TrainConfig) -> tuple[list[Example], int]:
    """Read the validation set that was given, if one was, and the number of its empty pairs."""
    if config.valid_tsv is not None:
        rows = read_references(config.valid_tsv)
    elif config.valid_source is not None and config.valid_target is not None:
        rows = (tuple(pair) for pair in read_pairs(config.valid_source, config.valid_target))
    else:
        return [], 0
    examples, empty = [], 0
    for source, *references in rows:
        if source.strip() and any(text.strip() for text in references):
            examples.append(Example(source, tuple(references)))
        else:
            empty += 1
    if not examples:
        raise DataError("the validation set has no pair with text on both sides")
    return examples, empty


def _train_tokenizers(
    config: TrainConfig, spool: _Spool, folder: Path
) -> tuple[Tokenizer, Tokenizer]:
    size = choose_vocab_size(config, pairs=spool.count, characters=len(spool.characters))
    if config.tokenizer.shared:
        texts = (text for pair in spool.pairs() for text in pair)
        tokenizer = train_tokenizer(texts, config.tokenizer, vocab_size=size)
        tokenizer.save(folder / "tokenizer.model")
        return tokenizer, tokenizer
    sides = []
    for side, name in enumerate(("source.model", "target.model")):
        texts = (pair[side] for pair in spool.pairs())
        sides.append(train_tokenizer(texts, config.tokenizer, vocab_size=size))
        sides[side].save(folder / name)
    return sides[0], sides[1]


def _encode(
    spool: _Spool, source_tokenizer: Tokenizer, target_tokenizer: Tokenizer
) -> Iterator[tuple[list[int], list[int]]]:
    pairs = spool.pairs()
    threads = torch.get_num_threads()
    while batch := list(itertools.islice(pairs, _ENCODED_AT_ONCE)):
        sources, targets = zip(*batch, strict=True)
        yield from zip(
            source_tokenizer.encode_all(sources, threads),
            target_tokenizer.encode_all(targets, threads),
            strict=True,
        )
