"""From text files to a run's data folder: filtered, counted, tokenized, encoded.

data/  tokenizer.model (or source.model, target.model)  train/ (the store)  valid.jsonl  report.json
"""

import json
import math
import os
from collections.abc import Iterator
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool
from pydantic import BaseModel, Field, TypeAdapter, ValidationError
from rich.console import Console

from transduce import bundle
from transduce.data import store
from transduce.data.blocks import EQUAL, LEAKED, Rows, encoder, learner, read_rows, reader
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
)
from transduce.text.tokenizer import Tokenizer, normalize
from transduce.train.config import TrainConfig
from transduce.train.defaults import choose_vocab_size
from transduce.workers import spread

_HELD_OUT_AT_MOST = 2_000
_HELD_OUT_SHARE = 0.02
LEARNT_FROM = 1_000_000
"""Pairs, at most, that the tokenizer sees: more would take memory and change little."""
_WITHOUT_WORKERS = 4_000_000
"""Bytes of text, at most, that are prepared before other processes would have started."""
_MOST_WORKERS = 8
"""This process cannot keep more at work."""
NOTHING_TO_VALIDATE = "the validation set has no pair with text on both sides"


class Example(NamedTuple):
    """A validation sentence and the translations it is compared with; the first gives the loss."""

    source: str
    references: Annotated[tuple[str, ...], Field(min_length=1)]


_EXAMPLE = TypeAdapter(Example)


class _Told(BaseModel):
    """What is needed of a report again: for the model card, and to choose settings."""

    lines: list[str]
    files: dict[str, Annotated[dict[Literal["name", "sha256"], str], Field(min_length=2)]]
    training_tokens: dict[Literal["source", "target"], int]


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
        lines = read_lines(plain(folder / "valid.jsonl"))
        valid = [_EXAMPLE.validate_json(line, strict=True) for line in lines]
        if not valid:
            raise ValueError("valid.jsonl is empty")
        report = read_json(folder / "report.json")
        _Told.model_validate(report, strict=True)
        source, target = bundle.load_tokenizers(folder)
        train = store.Store.open(folder / "train", (source.size, target.size))
    except (TransduceError, OSError, ValueError) as error:
        found = error
        if isinstance(error, ValidationError):
            found = f"report.json or valid.jsonl: {error.errors()[0]['msg']}"
        raise RunError(f"{folder} is damaged ({found}); train in another --out") from None
    return Data(source, target, train, valid, report)


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
        processes = min(torch.get_num_threads(), _MOST_WORKERS) if size > _WITHOUT_WORKERS else 0
    with whole_folder(folder) as beside:
        _make(config, beside, files, console, processes, lines)
    return open_data(folder)


def fingerprints(config: TrainConfig) -> dict[str, dict[str, str]]:
    """Base name and sha256 of each text file, by the name of its setting; of a model its weights'.

    Raises:
        DataError: a file that cannot be read.
        BundleError: the weights of `start_from` cannot be read.
    """
    found = {}
    for name, path in config.text_files().items():
        check_regular(f"--{name.replace('_', '-')}", path)
        try:
            sum_ = sha256(path)  # through a link too: it is the user's own
        except OSError as error:
            raise DataError(f"{path}: cannot be read ({error.strerror})") from None
        # A name need not be Unicode.
        found[name] = {"name": os.fsencode(path.name).decode("utf-8", "replace"), "sha256": sum_}
    if config.start_from is not None:
        weights = config.start_from / "model.safetensors"
        bundle.read_header(weights)  # it can be read
        found["start_from"] = {"name": config.start_from.name, "sha256": sha256(weights)}
    return found


def check_regular(option: str, path: Path) -> None:
    """See that a text is not a pipe, a device or a folder, if it is there.

    Raises:
        DataError: it is, or nobody can say.
    """
    try:
        folder = path.is_dir()
        regular = path.is_file() or not path.exists()
    except OSError as error:  # a name that is too long
        raise DataError(f"{path}: cannot be read ({error.strerror})") from None
    if folder:
        raise DataError(f"{option} {path} is a folder, not a text file")
    if not regular:
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
        raise _nothing_left(report)
    if not examples:
        examples = text.hold_out(report)
    report.validation, report.validation_empty, report.held_out = len(examples), empty, not known
    report.references = max(len(example.references) for example in examples)
    tokenizers = _tokenizers(config, text, console)
    bundle.save_tokenizers(folder, *tokenizers)
    with Stage(console, "encoding the text") as stage:
        blocks = text.encode(tokenizers, report, stage)
        largest = max(tokenizer.size for tokenizer in tokenizers)
        lengths = store.write(folder / "train", blocks, vocab_size=largest)
    if not len(lengths):
        raise _nothing_left(report)
    text.spool.unlink()
    with (folder / "valid.jsonl").open("w", encoding="utf-8", newline="\n") as file:
        for example in examples:
            file.write(json.dumps(example._asdict(), ensure_ascii=False) + "\n")
    tokens = lengths.sum(axis=0, dtype=np.int64).tolist()
    report.subwords = sum(tokens)
    summary = asdict(report) | {
        "kept": report.kept,
        "training": len(lengths),
        "training_tokens": {"source": tokens[0], "target": tokens[1]},
        "files": files,
        "lines": report.lines(),
    }
    written = json.dumps(summary, indent=2, ensure_ascii=False)
    (folder / "report.json").write_text(f"{written}\n", encoding="utf-8")


def _nothing_left(report: Report) -> DataError:
    return DataError("; ".join(["no pair is left to learn from", *report.lines()]))


class Text:
    """The training text on its way: read into a spool, judged, and encoded from there."""

    def __init__(self, config: TrainConfig, spool: Path, processes: int) -> None:
        self.spool = spool
        """A file of the pairs with text on both sides, in blocks."""
        self.characters = 0
        """How many different ones the kept pairs have."""
        self.count = 0
        """How many pairs are kept, those that are held out among them."""
        self.kept = np.zeros(0, np.bool_)
        """Which pairs of the spool are to be learnt."""
        self._config, self._processes = config, processes
        self._digests = np.zeros(0, np.uint64)
        self._blocks: list[tuple[int, int, int, int]] = []

    def read(self, known: set[int], lines: int, report: Report, stage: Stage) -> None:
        """Read all of it into the spool, and decide what is kept; `known` are not to be learnt.

        Raises:
            DataError: something is wrong with the files.
        """
        digests, flags, characters = bytearray(), bytearray(), np.zeros(0x110000, np.bool_)
        data, paths = self._config.data, _training_files(self._config)
        validation = np.array(sorted(known), np.uint64).tobytes()
        setup = (list(map(str, paths)), validation, data.drop_leaked, data.drop_equal)
        requests = stage.watch(read_blocks(paths, lines))
        with self.spool.open("wb") as file:
            for read in spread(reader, setup, requests, processes=self._processes):
                count, sources, targets, more_digests, more_flags, more_characters = read
                report.read += count
                report.dropped["empty"] += count - len(more_flags)
                characters[np.frombuffer(more_characters, np.uint32)] = True
                digests += more_digests
                flags += more_flags
                stage.advance(count)
                self._blocks.append((file.tell(), len(sources), len(targets), len(more_flags)))
                file.write(sources + targets)
        self.characters = int(np.count_nonzero(characters))
        self._digests = np.frombuffer(digests, np.uint64)
        found = np.frombuffer(flags, np.uint8)
        self.kept = judge(self._digests, found & LEAKED > 0, found & EQUAL > 0, data, report)
        self.count = int(np.count_nonzero(self.kept))

    def rows(self, chosen: Bool[np.ndarray, " n"]) -> Iterator[Rows]:
        """Yield the chosen rows, block by block."""
        end = 0
        for start, sources, targets, rows in self._blocks:
            end += rows
            if (mask := chosen[end - rows : end]).any():
                yield start, sources, targets, mask.tobytes()

    def hold_out(self, report: Report) -> list[Example]:
        """Set aside the pairs with the smallest digests; further copies of one are dropped."""
        digests = np.unique(self._digests[self.kept])
        if len(digests) == 1:
            raise DataError(f"too few different pairs to learn from and validate, of {self.count}")
        wanted = min(_HELD_OUT_AT_MOST, math.ceil(len(digests) * _HELD_OUT_SHARE))
        held_out = self.kept & (self._digests <= digests[wanted - 1])
        self.kept &= ~held_out
        report.dropped["leaked"] += int(np.count_nonzero(held_out)) - wanted
        with self.spool.open("rb") as file:
            blocks = [read_rows(file, rows) for rows in self.rows(held_out)]
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
        setup = (str(self.spool), models, self._config.data.model_dump(mode="json"))
        size = self.spool.stat().st_size
        requests = stage.watch((rows[0] / size, (rows,)) for rows in self.rows(self.kept))
        for encoded in spread(encoder, setup, requests, processes=self._processes):
            ids, lengths, too_long, bad_ratio, single_bytes = encoded
            report.dropped["too_long"] += too_long
            report.dropped["bad_ratio"] += bad_ratio
            report.single_bytes += single_bytes
            stage.advance(len(lengths) // 8 + too_long + bad_ratio)
            yield ids, lengths

    def learn_subwords(self, sides: list[tuple[int, ...]], vocab_size: int) -> list[bytes]:
        """Return a SentencePiece model of each group of sides."""
        blocks = tuple(self.rows(self.to_learn_subwords()))
        setup = (str(self.spool), self._config.tokenizer.model_dump(mode="json"), vocab_size)
        requests = [(group, blocks) for group in sides]
        return list(spread(learner, setup, requests, processes=min(self._processes, len(requests))))


def _training_files(config: TrainConfig) -> list[Path]:
    return [path for path in (config.tsv, config.source, config.target) if path is not None]


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
        filled = tuple(normalize(text) for text in references if text.strip())
        if source.strip() and filled:
            examples.append(Example(normalize(source), filled))
        else:
            empty += 1
    if not examples:
        path = config.valid_tsv or config.valid_source
        raise DataError(f"{path}: {NOTHING_TO_VALIDATE}")
    return examples, empty


def _tokenizers(config: TrainConfig, text: Text, console: Console) -> tuple[Tokenizer, Tokenizer]:
    """Learn the two sides' subwords, or take those of the model to start from."""
    if config.start_from is not None:
        return bundle.load_tokenizers(config.start_from)
    size = choose_vocab_size(config, pairs=text.count, characters=text.characters)
    sides: list[tuple[int, ...]] = [(0, 1)] if config.tokenizer.shared else [(0,), (1,)]
    if (count := int(np.count_nonzero(text.kept))) > LEARNT_FROM:
        say(console, f"  subwords are learnt from {LEARNT_FROM:,} of the {count:,} pairs")
    with Stage(console, "learning subwords"):
        tokenizers = [Tokenizer(model) for model in text.learn_subwords(sides, size)]
    return tokenizers[0], tokenizers[-1]
