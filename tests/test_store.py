"""What is written is read, as Python ints; a folder of the final name is whole or refused."""

import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from transduce.data import store
from transduce.data.store import Store
from transduce.errors import DataError, RunError

IDS = st.lists(st.integers(0, 70_000), min_size=1, max_size=6)
SIZES = (65_536, 65_536)
PAIRS = [([4, 5, 6], [7]), ([], [8, 9]), ([65_535], [])]


def write(folder, pairs, *, vocab_size):
    """Write pairs, a few at a time, as their bytes."""
    size = "<u2" if vocab_size <= 65_536 else "<u4"
    blocks = (
        (
            b"".join(np.array(side, size).tobytes() for pair in block for side in pair),
            np.array([[len(side) for side in pair] for pair in block], "<i4").tobytes(),
        )
        for block in (pairs[start : start + 2] for start in range(0, len(pairs), 2))
    )
    lengths = store.write(folder, blocks, vocab_size=vocab_size)
    opened = Store.open(folder, (vocab_size, vocab_size))
    assert np.array_equal(lengths, opened.lengths)
    return opened


def read(opened):
    return [opened[row] for row in range(len(opened))]


@given(st.lists(st.tuples(IDS, IDS), min_size=1))
def test_what_is_written_is_read(tmp_path_factory, pairs):
    folder = tmp_path_factory.mktemp("run") / "data" / "train"
    opened = write(folder, pairs, vocab_size=80_000)
    assert read(opened) == pairs
    assert opened.lengths.tolist() == [[len(source), len(target)] for source, target in pairs]
    assert opened.lengths.dtype == np.int32


def test_ids_come_back_as_python_ints(tmp_path):
    opened = write(tmp_path / "train", PAIRS, vocab_size=65_536)
    assert {type(i) for pair in read(opened) for side in pair for i in side} == {int}
    assert opened[np.int64(1)] == ([], [8, 9])


def test_a_store_is_a_sequence(tmp_path):
    opened = write(tmp_path / "train", PAIRS, vocab_size=65_536)
    assert len(opened) == 3
    assert list(opened) == PAIRS
    for row in (3, -1):
        with pytest.raises(IndexError, match=f"row {row} of a store of 3 pairs"):
            opened[row]


@pytest.mark.parametrize(("largest", "size"), [(65_535, 2), (65_536, 4)])
def test_ids_take_two_bytes_where_they_fit(tmp_path, largest, size):
    write(tmp_path / "train", [([1], [2]), ([largest], [3])], vocab_size=largest + 1)
    assert (tmp_path / "train" / "ids.bin").stat().st_size == 4 * size


@pytest.mark.parametrize("sizes", [(7, 9), (6, 10)])
def test_an_id_that_its_vocabulary_lacks_is_told_when_it_is_read(tmp_path, sizes):
    write(tmp_path / "train", [([4, 5], [7]), ([], [8, 9]), ([6], [])], vocab_size=10)
    opened = Store.open(tmp_path / "train", sizes)
    told = []
    for row in range(3):
        try:
            opened[row]
        except RunError as error:
            told.append(str(error))
    assert len(told) == 1
    assert f"pair {1 if sizes[1] == 9 else 2} has an id that is not in the vocabulary" in told[0]


def test_every_file_cut_short_is_noticed(tmp_path):
    folder = tmp_path / "train"
    write(folder, PAIRS, vocab_size=65_536)
    for path in folder.iterdir():
        whole = path.read_bytes()
        # The brace of the JSON file may lose its line end.
        for length in range(len(whole) - (path.suffix == ".json")):
            path.write_bytes(whole[:length])
            with pytest.raises(DataError, match=r"train: .*prepare the data again"):
                Store.open(folder, SIZES)
        path.unlink()
        with pytest.raises(DataError, match="train: "):
            Store.open(folder, SIZES)
        path.write_bytes(whole)
    assert read(Store.open(folder, SIZES)) == PAIRS


@pytest.mark.parametrize(
    "meta",
    [
        '{"format": 2, "dtype": "uint16", "pairs": 3}',
        '{"format": 1, "dtype": "object", "pairs": 3}',
        '{"format": 1, "dtype": [], "pairs": 3}',
        '{"format": 1, "dtype": "uint16", "pairs": 4}',
        '{"format": 1, "dtype": "uint32", "pairs": 3}',
        '{"format": 1, "dtype": "uint16"}',
        "[]",
        "3",
    ],
)
def test_a_foreign_description_is_refused(tmp_path, meta):
    write(tmp_path / "train", PAIRS, vocab_size=65_536)
    (tmp_path / "train" / "store.json").write_text(meta, encoding="utf-8")
    with pytest.raises(DataError, match="train: "):
        Store.open(tmp_path / "train", SIZES)


@pytest.mark.parametrize(
    "lengths",
    [
        np.array([[3, 1], [0, 2], [1, 0]], dtype=np.int64),
        np.array([[3, 1], [0, 4], [1, -2]], dtype=np.int32),
        np.array([3, 1, 0, 2, 1, 0], dtype=np.int32),
        np.array([["a", "b"]] * 3, dtype=object),
    ],
)
def test_foreign_lengths_are_refused(tmp_path, lengths):
    write(tmp_path / "train", PAIRS, vocab_size=65_536)
    np.save(tmp_path / "train" / "lengths.npy", lengths, allow_pickle=True)
    with pytest.raises(DataError, match="train: "):
        Store.open(tmp_path / "train", SIZES)


class Trap:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_objects_in_an_array_are_refused_and_do_not_run(tmp_path):
    write(tmp_path / "train", PAIRS, vocab_size=65_536)
    lengths = np.array([[Trap(tmp_path / "sprung")] * 2] * 3, dtype=object)
    np.save(tmp_path / "train" / "lengths.npy", lengths, allow_pickle=True)
    with pytest.raises(DataError, match="train: "):
        Store.open(tmp_path / "train", SIZES)
    assert not (tmp_path / "sprung").exists()


def test_a_header_that_does_not_end_is_refused(tmp_path):
    write(tmp_path / "train", PAIRS, vocab_size=65_536)
    path = tmp_path / "train" / "lengths.npy"
    path.write_bytes(path.read_bytes().replace(b"}", b" "))
    with pytest.raises(DataError, match="train: "):
        Store.open(tmp_path / "train", SIZES)
