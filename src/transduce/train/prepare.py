"""From text files to a run's data folder: filtered, counted, tokenized, encoded; validation aside.

data/  tokenizer.model (or source.model, target.model)  train/ (the store)  valid.jsonl  report.json
"""

import json
import math
import os
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool
from rich.console import Console

from transduce import bundle
from transduce.data import store
from transduce.data.blocks import (
    EQUAL,
    LEAKED,
    Encoded,
    Read,
    Spool,
    encoder,
    learner,
    read_rows,
    reader,
)
from transduce.errors import DataError, RunError, TransduceError
from transduce.files import plain, read_json, sha256, whole_folder
from transduce.progress import Stage, say
from transduce.text.corpus import (
    Pair,
    Report,
    digest,
    judge,
    read_blocks,
    read_lines,
    read_pairs,
    read_references,
    read_tsv,
)
from transduce.text.tokenizer import Tokenizer
from transduce.train.config import TrainConfig
from transduce.train.defaults import choose_vocab_size
from transduce.workers import spread

_HELD_OUT_AT_MOST = 2_000
_HELD_OUT_SHARE = 0.02
LEARNT_FROM = 1_000_000
"""Pairs, at most, that the tokenizer sees: more would take memory and change little."""
_SMALL = 4_000_000
"""Bytes of text that are prepared before other processes would have started."""
_PROCESSES = 8
"""At most: this one cannot keep more at work."""
NOTHING_TO_VALIDATE = "the validation set has no pair with text on both sides"
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


def prepare(
    config: TrainConfig,
    folder: Path,
    files: dict[str, dict[str, str]],
    console: Console,
    *,
    processes: int | None = None,
    lines: int = 4_000,
) -> Data:
    """Make the data folder of a run, whole or not at all, in place of any that is there.

    `files` are the `fingerprints` of the text, for the report. The result does not depend on the
    number of processes (None: as many as PyTorch has threads, and none for little text), nor on how
    many lines each of them is given at once.

    Raises:
        DataError: files that cannot be used, or nothing left of them.
        TokenizerError: a vocabulary that the text cannot give.
    """
    if processes is None:
        size = sum(path.stat().st_size for path in _training_files(config) if path.is_file())
        processes = min(torch.get_num_threads(), _PROCESSES) if size > _SMALL else 0
    with whole_folder(folder) as beside:
        _make(config, beside, files, console, processes, lines)
    return open_data(folder)


def fingerprints(config: TrainConfig) -> dict[str, dict[str, str]]:
    """Base name and sha256 of each text file, by the name of its setting.

    Raises:
        DataError: a file that cannot be read.
    """
    for name, path in config.text_files().items():
        check_regular(f"--{name.replace('_', '-')}", path)
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


def check_regular(option: str, path: Path) -> None:
    """See that a text is not a pipe, a device or a folder, if it is there.

    Raises:
        DataError: it is.
    """
    if path.exists() and not path.is_file():
        raise DataError(
            f"{option} {path} is not a regular file; training reads a text more than once, so save "
            "it first"
        )


def _make(
    config: TrainConfig,
    folder: Path,
    files: dict[str, dict[str, str]],
    console: Console,
    processes: int,
    lines: int,
) -> None:
    examples, empty = _read_validation(config)
    report = Report()
    known = {digest(Pair(e.source, text)) for e in examples for text in e.references}
    text = Text(config, folder / "kept", processes)
    with Stage(console, "reading the text") as stage:
        text.read(known, lines, report, stage)
    if not text.count:
        raise DataError("; ".join(["no pair is left to learn from", *report.lines()]))
    if not examples:
        examples = text.hold_out()
    tokenizers = _train_tokenizers(config, text, folder, console)
    with Stage(console, "encoding the text") as stage:
        blocks = text.encode(tokenizers, report, stage)
        try:
            written = store.write(
                folder / "train", blocks, vocab_size=max(tokenizer.size for tokenizer in tokenizers)
            )
        except DataError:
            raise DataError("; ".join(["no pair is left to learn from", *report.lines()])) from None
    text.spool.path.unlink()
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
    (folder / "report.json").write_text(
        json.dumps(summary, indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
    )


def _for_people(
    report: Report, examples: list[Example], empty: int, *, held_out: bool
) -> list[str]:
    origin = "held out of them by a hash of the pair" if held_out else "read"
    lines = [*report.lines(), f"{len(examples):,} validation pairs {origin}"]
    if empty:
        lines.append(f"{empty:,} validation pairs dropped: a side is empty")
    return lines


class Text:
    """The training text on its way: read into a spool, judged, and encoded from there."""

    def __init__(self, config: TrainConfig, spool: Path, processes: int) -> None:
        self.spool = Spool(spool)
        self.characters = 0
        """How many different ones there are in the pairs that are kept."""
        self.count = 0
        """How many pairs are kept, those that are held out among them."""
        self.kept = np.zeros(0, np.bool_)
        """Which pairs of the spool are to be learnt."""
        self._config, self._processes = config, processes
        self._digests = np.zeros(0, np.uint64)

    def read(self, known: set[int], lines: int, report: Report, stage: Stage) -> None:
        """Read all of it into the spool, and decide what is kept; `known` are not to be learnt.

        Raises:
            DataError: something is wrong with the files.
        """
        digests, flags, characters = bytearray(), bytearray(), np.zeros(0x110000, np.bool_)

        data = self._config.data
        validation = np.array(sorted(known), np.uint64).tobytes()

        def blocks() -> Iterator[Read]:
            setup = (validation, data.drop_leaked, data.drop_equal)
            requests = stage.watch(read_blocks(_training_files(self._config), lines))
            for values in spread(reader, setup, requests, processes=self._processes):
                if values is None:
                    raise DataError("the text has changed while it was read; start again")
                block = Read(*values)
                report.read += block.lines
                report.dropped["empty"] += block.lines - len(block.flags)
                characters[np.frombuffer(block.characters, np.uint32)] = True
                digests.extend(block.digests)
                flags.extend(block.flags)
                stage.advance(block.lines)
                yield block

        try:
            self.spool.write(blocks())
        except DataError:
            for _ in _read_training(self._config):
                pass  # one pair after another, it is told what is wrong and where
            raise
        self.characters = int(np.count_nonzero(characters))
        self._digests = np.frombuffer(digests, np.uint64)
        found = np.frombuffer(flags, np.uint8)
        self.kept = judge(self._digests, found & LEAKED > 0, found & EQUAL > 0, data, report)
        self.count = int(np.count_nonzero(self.kept))

    def hold_out(self) -> list[Example]:
        """Set aside the pairs with the smallest digests, all copies of a pair together."""
        digests = self._digests[self.kept]
        if digests.min() == digests.max():
            raise DataError(f"too few different pairs to learn from and validate, of {self.count}")
        wanted = min(_HELD_OUT_AT_MOST, math.ceil(self.count * _HELD_OUT_SHARE))
        held_out_to = min(np.partition(digests, wanted - 1)[wanted - 1], digests.max() - 1)
        held_out = self.kept & (self._digests <= held_out_to)
        self.kept &= ~held_out
        with self.spool.path.open("rb") as file:
            blocks = [read_rows(file, rows) for rows in self.spool.rows(held_out)]
        pairs = chain.from_iterable(zip(*sides, strict=True) for sides in blocks)
        return [Example(source, (target,)) for source, target in dict.fromkeys(pairs)]

    def to_learn_subwords(self) -> Bool[np.ndarray, " n"]:
        """Which rows the tokenizer sees: those with the largest digests, where it cannot be all."""
        chosen = self.kept
        if np.count_nonzero(chosen) > LEARNT_FROM:
            least = np.partition(self._digests[chosen], -LEARNT_FROM)[-LEARNT_FROM]
            chosen = chosen & (self._digests >= least)
            chosen &= np.cumsum(chosen) <= LEARNT_FROM  # copies of the last
        return chosen

    def encode(
        self, tokenizers: tuple[Tokenizer, Tokenizer], report: Report, stage: Stage
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield ids and lengths of the pairs to learn from, as the store takes them."""
        models = tuple(tokenizer.model for tokenizer in tokenizers)
        setup = (str(self.spool.path), models, self._config.data.model_dump(mode="json"))
        size = self.spool.path.stat().st_size
        requests = stage.watch((block[0] / size, (block,)) for block in self.spool.rows(self.kept))
        for values in spread(encoder, setup, requests, processes=self._processes):
            block = Encoded(*values)
            report.dropped["too_long"] += block.too_long
            report.dropped["bad_ratio"] += block.bad_ratio
            stage.advance(len(block.lengths) // 8 + block.too_long + block.bad_ratio)
            yield block.ids, block.lengths

    def learn_subwords(self, sides: list[tuple[int, ...]], vocab_size: int) -> list[bytes]:
        """Return a SentencePiece model of each group of sides."""
        blocks = tuple(self.spool.rows(self.to_learn_subwords()))
        setup = (str(self.spool.path), self._config.tokenizer.model_dump(mode="json"), vocab_size)
        requests = [(group, blocks) for group in sides]
        return list(spread(learner, setup, requests, processes=min(self._processes, len(requests))))


def _training_files(config: TrainConfig) -> list[Path]:
    return [path for path in (config.tsv, config.source, config.target) if path is not None]


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
        path = config.valid_tsv or config.valid_source
        raise DataError(f"{path}: {NOTHING_TO_VALIDATE}")
    return examples, empty


def _train_tokenizers(
    config: TrainConfig, text: Text, folder: Path, console: Console
) -> tuple[Tokenizer, Tokenizer]:
    count = int(np.count_nonzero(text.kept))
    size = choose_vocab_size(config, pairs=text.count, characters=text.characters)
    groups: list[tuple[int, ...]] = [(0, 1)] if config.tokenizer.shared else [(0,), (1,)]
    names = ["tokenizer.model"] if config.tokenizer.shared else ["source.model", "target.model"]
    if count > LEARNT_FROM:
        say(console, f"  subwords are learnt from {LEARNT_FROM:,} of the {count:,} pairs")
    with Stage(console, "learning subwords"):
        tokenizers = [Tokenizer(model) for model in text.learn_subwords(groups, size)]
    for tokenizer, name in zip(tokenizers, names, strict=True):
        tokenizer.save(folder / name)
    return tokenizers[0], tokenizers[-1]
