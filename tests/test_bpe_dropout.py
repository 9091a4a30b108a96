"""BPE-dropout: its probabilities, and that no stop shows in it."""

from pathlib import Path

import pytest
from corpora import SMALL, reversals, stop_after
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file

from transduce import train
from transduce.config import validate
from transduce.errors import SettingsError
from transduce.ids import UNK
from transduce.text.tokenizer import Tokenizer, TokenizerConfig, train_tokenizer
from transduce.train import checkpoint
from transduce.train.config import TrainConfig


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    lines = [f"the quick brown fox {i} jumps over lazy dogs' {i * 7} backs" for i in range(400)]
    return train_tokenizer(lines, TokenizerConfig(), vocab_size=400)


TEXTS = ["the quick brown fox jumps", "dogs' backs and \u4e2d\u6587", "", "</s> <0x41> over"] * 50


def test_what_is_cut_anew_reads_the_same(tokenizer: Tokenizer):
    rows = [tokenizer.encode(text) for text in TEXTS]
    anew = tokenizer.encode_with_dropout(rows, 0.3, seed=5)
    assert [tokenizer.decode(row) for row in anew] == [tokenizer.decode(row) for row in rows]
    assert anew != rows
    assert all(i > UNK for row in anew for i in row)


@given(st.text(max_size=40), st.integers(0, 2**32 - 1))
def test_any_text_cut_anew_reads_the_same(tokenizer: Tokenizer, text: str, seed: int):
    rows = [tokenizer.encode(text)]
    assert tokenizer.decode(tokenizer.encode_with_dropout(rows, 0.5, seed)[0]) == tokenizer.decode(
        rows[0]
    )


def test_the_seed_alone_decides_the_cuts(tokenizer: Tokenizer):
    rows = [tokenizer.encode(text) for text in TEXTS]
    first = tokenizer.encode_with_dropout(rows, 0.3, seed=5)
    assert tokenizer.encode_with_dropout(rows, 0.3, seed=6) != first
    assert tokenizer.encode_with_dropout(rows, 0.3, seed=5) == first
    assert Tokenizer(tokenizer.model).encode_with_dropout(rows, 0.3, seed=5) == first


def test_each_merge_is_left_out_with_the_probability(tokenizer: Tokenizer):
    two = train_tokenizer(["ab ab ab ab", "ab cd"] * 50, TokenizerConfig(), vocab_size=270)
    rows = [two.encode("ab")] * 20_000
    whole = min(two.encode_with_dropout(rows, 0.0, seed=1), key=len)
    assert two.pieces(whole) == ["\u2581ab"]
    apart = sum(len(row) > 1 for row in two.encode_with_dropout(rows, 0.1, seed=1)) / len(rows)
    # Two merges lead to the piece; where the first is left out, the second one has no chance.
    assert 0.1 < apart < 0.2


def test_each_micro_batch_is_cut_by_its_own_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def noted(self: Tokenizer, rows: list[list[int]], dropout: float, seed: int) -> list[list[int]]:
        assert dropout == 0.2
        seeds.append(seed)
        return original(self, rows, dropout, seed)

    original, seeds = Tokenizer.encode_with_dropout, []
    monkeypatch.setattr(Tokenizer, "encode_with_dropout", noted)
    reversals(tmp_path)
    train(settings(tmp_path, "seeds", max_steps=5))
    both = list(zip(seeds[::2], seeds[1::2], strict=True))
    assert all(source == target for source, target in both)
    assert 5 < len(both) <= 10
    assert len(set(seeds)) == len(both)


CUT_ANEW = {"bpe_dropout": 0.2, "accumulate": 2, "save_every": 7}


def settings(folder: Path, out: str, **changes: object) -> TrainConfig:
    tree = SMALL | {"train": SMALL["train"] | CUT_ANEW | changes}
    text = {"source": str(folder / "text.src"), "target": str(folder / "text.tgt")}
    return validate(TrainConfig, tree | text | {"out": str(folder / out)})


def weights(run: Path, step: int) -> dict[str, bytes]:
    tensors = load_file(checkpoint.path(run, step) / "training.safetensors")
    return {name: tensor.tobytes() for name, tensor in tensors.items()}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_stopped_training_goes_on_as_if_nothing_had_been(tmp_path: Path, precision: str):
    reversals(tmp_path)
    whole, stopped = (
        settings(tmp_path, name).model_copy(update={"precision": precision})
        for name in ("whole", "stopped")
    )
    train(whole)
    stop_after(7, stopped)
    train(stopped)
    assert weights(tmp_path / "stopped", 20) == weights(tmp_path / "whole", 20)
    plain = settings(tmp_path, "plain", bpe_dropout=0.0)
    train(plain)
    assert weights(tmp_path / "plain", 20) != weights(tmp_path / "whole", 20)


def test_dropout_of_merges_needs_merges(tmp_path: Path):
    reversals(tmp_path)
    tree = settings(tmp_path, "unigram").model_dump(exclude_none=True)
    tree["tokenizer"]["kind"] = "unigram"
    with pytest.raises(SettingsError, match="kind is unigram; use kind bpe, or bpe_dropout 0"):
        validate(TrainConfig, tree)


def test_a_pair_that_would_be_too_long_for_the_model_keeps_its_cuts(tmp_path: Path):
    reversals(tmp_path)
    tree = settings(tmp_path, "long", bpe_dropout=0.9, max_steps=5).model_dump(exclude_none=True)
    tree["data"]["max_length"] = tree["model"]["max_length"] = 13
    tree["data"]["max_length"] = 12
    train(validate(TrainConfig, tree))
