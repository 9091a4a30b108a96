"""The encoded corpus on disk: bare ids of each pair, written once in a stream, then memory-mapped.

A store is a folder: `ids.bin` (source then target of each pair, uint16 or uint32, little endian),
`lengths.npy` (int32, [pairs, 2]) and `store.json` (format, type, count of pairs). `write` does not
care for a kill in between: its caller writes into a `whole_folder` (files.py).

Shapes: n pairs.
"""

import json
from collections.abc import Iterable
from operator import index
from pathlib import Path
from tokenize import TokenError
from typing import SupportsIndex

import numpy as np
from jaxtyping import Int32

from transduce.errors import DataError, RunError
from transduce.files import plain, read_json

_FORMAT = 1


class Store:
    """A read-only sequence of pairs of ids; `lengths` has source and target, without marks."""

    lengths: Int32[np.ndarray, "n 2"]

    def __init__(self, ids: np.ndarray, lengths: np.ndarray, sizes: tuple[int, int]) -> None:
        """Wrap the arrays; `open` is what reads a folder."""
        self.lengths = lengths
        self._ids, self._sizes = ids, sizes
        self._starts = np.zeros(len(lengths) + 1, dtype=np.int64)
        np.cumsum(lengths.sum(axis=1, dtype=np.int64), out=self._starts[1:])

    @classmethod
    def open(cls, folder: Path, sizes: tuple[int, int]) -> "Store":
        """Map a store into memory; `sizes` are those of the two vocabularies.

        Raises:
            DataError: the folder is missing, is not a store, or its files do not fit each other.
        """
        try:
            meta = read_json(folder / "store.json")
            dtype = {"uint16": "<u2", "uint32": "<u4"}[meta["dtype"]]
            # open_memmap reads arrays and nothing else: no archive, no pickle.
            lengths = np.lib.format.open_memmap(plain(folder / "lengths.npy"), mode="r")
            ids = np.memmap(plain(folder / "ids.bin"), dtype=dtype, mode="r")
            if not (
                meta["format"] == _FORMAT
                and lengths.dtype == np.int32
                and lengths.shape == (meta["pairs"], 2)
                and int(lengths.min()) >= 0
                and int(lengths.sum(dtype=np.int64)) == len(ids)
            ):
                raise ValueError("its files do not fit each other")
        except (OSError, ValueError, KeyError, TypeError, TokenError) as error:
            raise DataError(
                f"{folder}: not a readable store ({error}); prepare the data again"
            ) from None
        return cls(ids, lengths, sizes)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, row: SupportsIndex) -> tuple[list[int], list[int]]:
        """Return the source and target ids of a pair, as Python ints.

        Raises:
            RunError: an id that its vocabulary does not have: the file has been damaged.
        """
        row = index(row)
        if not 0 <= row < len(self):
            raise IndexError(f"row {row} of a store of {len(self)} pairs")
        start, end = self._starts[row], self._starts[row + 1]
        middle = start + self.lengths[row, 0]
        pair = self._ids[start:middle].tolist(), self._ids[middle:end].tolist()
        if any(max(ids, default=0) >= size for ids, size in zip(pair, self._sizes, strict=True)):
            problem = f"ids.bin is damaged: pair {row} has an id that is not in the vocabulary"
            raise RunError(f"{problem}; train in another --out")
        return pair


def id_type(vocab_size: int) -> str:
    """The type that ids of such a vocabulary have on disk."""
    return "<u2" if vocab_size <= 2**16 else "<u4"


def write(
    folder: Path, blocks: Iterable[tuple[bytes, bytes]], *, vocab_size: int
) -> Int32[np.ndarray, "n 2"]:
    """Write blocks of ids and lengths, as bytes, into a new folder; return all lengths."""
    lengths = bytearray()
    folder.mkdir(parents=True)
    with (folder / "ids.bin").open("wb") as file:
        for ids, sizes in blocks:
            file.write(ids)
            lengths += sizes
    array = np.frombuffer(lengths, np.int32).reshape(-1, 2)
    np.save(folder / "lengths.npy", array)
    meta = {"format": _FORMAT, "dtype": np.dtype(id_type(vocab_size)).name, "pairs": len(array)}
    (folder / "store.json").write_text(json.dumps(meta) + "\n", encoding="utf-8")
    return array
