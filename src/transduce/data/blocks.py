"""What is done to a block of lines at a time, here or in other processes (workers.py).

`reader` makes a spool of text files: the pairs with text on both sides, in normal form. `learner`
and `encoder` take the chosen rows of it.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import chain, compress
from operator import eq
from pathlib import Path
from typing import BinaryIO

import numpy as np

from transduce.config import validate
from transduce.data import store
from transduce.text.corpus import DataConfig, block_lines, key, two_columns, unfit
from transduce.text.tokenizer import Tokenizer, TokenizerConfig, normalize_lines, train_tokenizer

LEAKED, EQUAL = 1, 2


def reader(
    names: Sequence[str], validation: bytes, drop_leaked: bool, drop_equal: bool
) -> Callable[..., tuple]:
    """Return a function from a block of lines, of one file with TAB or of two, to its pairs.

    `names` are the files', `validation` has the digests of its pairs. The function returns the
    number of lines and, of the pairs with text on both sides, as bytes: sources and targets, each
    with LF between lines; digests (uint64); flags (uint8: LEAKED, EQUAL); the characters (uint32)
    of those that may be kept. It raises DataError, with the line, for what is not UTF-8 or has not
    two columns.
    """
    known = np.frombuffer(validation, np.uint64)
    fatal = LEAKED * drop_leaked | EQUAL * drop_equal
    paths = list(map(Path, names))

    def columns(files: Sequence[bytes]) -> Iterable[Sequence[str]]:
        sides = [normalize_lines(file.decode("utf-8")).split("\n") for file in files]
        if len(sides) == 2:
            return sides
        return zip(*(line.split("\t") for line in sides[0]), strict=True)

    def read(first: int, files: Sequence[bytes]) -> tuple:
        try:
            left, right = columns(files)
        except ValueError:  # not UTF-8, or columns that are not two
            for number, line in enumerate(block_lines(paths, first, files), first):
                if len(paths) == 1:
                    two_columns(paths[0], number, *line)
            raise
        filled = [bool(s.strip() and t.strip()) for s, t in zip(left, right, strict=True)]
        sources, targets = (list(compress(side, filled)) for side in (left, right))
        digests = np.frombuffer(b"".join(map(key, sources, targets)), ">u8").astype(np.uint64)
        flags = np.isin(digests, known) * np.uint8(LEAKED)
        flags |= np.fromiter(map(eq, sources, targets), np.bool_, len(sources)) * np.uint8(EQUAL)
        kept = flags & fatal == 0
        text = "".join(chain(compress(sources, kept), compress(targets, kept)))
        characters = np.zeros(0x110000, np.bool_)
        characters[np.frombuffer(text.encode("utf-32-le"), "<u4")] = True
        sides = ("\n".join(side).encode("utf-8") for side in (sources, targets))
        arrays = (digests, flags, np.flatnonzero(characters).astype(np.uint32))
        return (len(filled), *sides, *(array.tobytes() for array in arrays))

    return read


Rows = tuple[int, int, int, bytes]
"""Some rows of a block in the spool: its first byte, how many bytes are sources and how many are
targets, and a byte for each of its rows: 1, or 0 where the row is left out."""


def read_rows(file: BinaryIO, rows: Rows) -> tuple[list[str], list[str]]:
    """Return the sources and the targets of some rows of a spool."""
    start, sources, targets, chosen = rows
    file.seek(start)
    sides = (file.read(size).decode("utf-8").split("\n") for size in (sources, targets))
    source, target = (list(compress(side, chosen)) for side in sides)
    return source, target


def learner(path: str, settings: dict, vocab_size: int) -> Callable[..., bytes]:
    """Return a function from some sides (0, 1) and blocks of rows to a SentencePiece model."""

    def learn(sides: Sequence[int], blocks: Iterable[Rows]) -> bytes:
        with open(path, "rb") as file:
            pairs = chain.from_iterable(
                zip(*(read_rows(file, rows)[side] for side in sides), strict=True)
                for rows in blocks
            )
            texts = chain.from_iterable(pairs)
            config = validate(TokenizerConfig, settings)
            return train_tokenizer(texts, config, vocab_size=vocab_size).model

    return learn


def encoder(path: str, models: Sequence[bytes], settings: dict) -> Callable[..., tuple]:
    """Return a function from a block of rows to their ids and lengths, as bytes for the store.

    Pairs that are too long or too uneven are left out. Then come the numbers of both, and how many
    ids are single bytes. `models` are the tokenizers of source and target, `settings` a DataConfig.
    """
    tokenizers = [Tokenizer(model) for model in models]
    is_byte = [tokenizer.single_bytes() for tokenizer in tokenizers]
    dtype = store.id_type(max(tokenizer.size for tokenizer in tokenizers))
    config = validate(DataConfig, settings)

    def encode(rows: Rows) -> tuple[bytes, bytes, int, int, int]:
        with open(path, "rb") as file:
            texts = read_rows(file, rows)
        sides = [t.encode_all(side, 1) for t, side in zip(tokenizers, texts, strict=True)]
        lengths = np.array([list(map(len, side)) for side in sides], np.int32).T
        too_long, bad_ratio = unfit(lengths, config)
        fit = ~(too_long | bad_ratio)
        kept = [list(compress(side, fit)) for side in sides]
        lists = chain.from_iterable(zip(*kept, strict=True))
        ids = np.fromiter(chain.from_iterable(lists), dtype, lengths[fit].sum())
        single = sum(
            known[i] for known, side in zip(is_byte, kept, strict=True) for row in side for i in row
        )
        counts = (int(too_long.sum()), int(bad_ratio.sum()), single)
        return ids.tobytes(), lengths[fit].tobytes(), *counts

    return encode
