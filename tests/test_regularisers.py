"""SimCut and BPE-dropout: mathematics by independent means, and that no stop shows in them."""

import math
from pathlib import Path

import pytest
import torch
from corpora import SMALL, reversals, stop_after
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file
from torch import nn
from torch.nn import functional

from transduce import Transformer, train
from transduce.config import validate
from transduce.data.batching import collate
from transduce.errors import SettingsError
from transduce.ids import PAD, UNK
from transduce.model.config import preset
from transduce.text.tokenizer import Tokenizer, TokenizerConfig, train_tokenizer
from transduce.train import checkpoint
from transduce.train.config import TrainConfig
from transduce.train.defaults import Chosen, at_once
from transduce.train.loop import batch_loss, second_half_cut

V, SHARE, WEIGHT = 23, 0.4, 3.0
PAIRS = [([5, 6, 7, 8, 9], [9, 8, 7]), ([10, 11], [12, 13, 14, 15]), ([16, 4, 17], [18])]


def chosen(**changes: float) -> Chosen:
    needed = {"max_steps": 10, "batch_tokens": 64, "learning_rate_scale": 1.0, "warmup": 3}
    return Chosen(**needed, validate_every=5, save_every=5, **changes)


def model(vocabulary: int, **changes: object) -> Transformer:
    torch.manual_seed(7)
    small = {"d_model": 16, "d_ff": 24, "encoder_layers": 2, "decoder_layers": 2}
    return Transformer(preset("tiny", vocabulary, **small | changes))


@pytest.mark.parametrize("tie", ["all", "decoder"])
def test_simcut_is_cross_entropy_and_divergence_from_a_pair_with_tokens_cut(tie: str):
    """What is cut has the embedding of a word that is nothing: a row of zeros after the last."""
    ours = model(V, dropout=0.0, tie=tie).train()
    batch = collate(PAIRS)
    torch.manual_seed(3)
    found = batch_loss(ours, batch, chosen(simcut=WEIGHT, cutoff=SHARE))
    ours.zero_grad()
    found.smoothed.backward()

    torch.manual_seed(3)
    source, target = (
        ids.masked_fill((torch.rand(2 * len(ids), ids.shape[1]) < SHARE)[len(ids) :], V)
        for ids in batch[:2]
    )
    # A mask is made from the ids: where padding is cut, it stays padding.
    source = source.masked_fill(batch.source == PAD, PAD)
    target = target.masked_fill(batch.decoder_input == PAD, PAD)
    assert 3 < (source == V).sum() < 15 > (target == V).sum() > 3
    theirs = model(V, dropout=0.0, tie=tie).train()
    for table in {theirs.source_embedding.table, theirs.target_embedding.table}:
        table.weight = nn.Parameter(torch.cat([table.weight.detach(), torch.zeros(1, 16)]))
    theirs.output.weight = theirs.target_embedding.table.weight

    def logits(source: torch.Tensor, decoder_input: torch.Tensor) -> torch.Tensor:
        return theirs.decode(decoder_input, *theirs.encode(source)) @ theirs.output.weight[:V].T

    whole, cut = logits(batch.source, batch.decoder_input), logits(source, target)
    loss = functional.cross_entropy(
        whole.flatten(0, 1), batch.labels.flatten(), ignore_index=PAD, label_smoothing=0.1,
        reduction="sum",
    )  # fmt: skip
    divergence = functional.kl_div(
        cut.log_softmax(-1), whole.log_softmax(-1), log_target=True, reduction="none"
    )
    divergence = (divergence.sum(-1) * (batch.labels != PAD)).sum()
    assert divergence > 0.1
    torch.testing.assert_close(found.smoothed, loss + WEIGHT * divergence, rtol=1e-5, atol=0)
    (loss + WEIGHT * divergence).backward()
    for (name, one), other in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(
            one.grad, other.grad[: len(one)], rtol=1e-4, atol=2e-5, msg=lambda m, n=name: f"{n} {m}"
        )


def test_only_the_second_half_is_cut_and_by_the_share():
    ours = model(V, dropout=0.0)
    ids = torch.full((80, 200), 5)
    whole = ours.source_embedding(ids)
    torch.manual_seed(1)
    with second_half_cut(ours, 0.05):
        rows = ours.source_embedding(ids)
    assert torch.equal(rows[:40], whole[:40])
    cut = (rows[40:] != whole[40:]).any(-1)
    assert abs(cut.float().mean() - 0.05) < 5 * math.sqrt(0.05 * 0.95 / cut.numel())
    positions = ours.source_embedding.positions[:200].expand(40, -1, -1)
    assert torch.equal(rows[40:][cut], positions[cut])
    assert torch.equal(ours.source_embedding(ids), whole)  # nothing is left behind


def test_without_simcut_the_loss_looks_once():
    ours, batch = model(V, dropout=0.0).train(), collate(PAIRS)
    calls: list[int] = []
    ours.encoder[0].register_forward_hook(lambda _m, _i, rows: calls.append(len(rows)))
    batch_loss(ours, batch, chosen())
    batch_loss(ours, batch, chosen(simcut=1.0))
    assert calls == [len(PAIRS), 2 * len(PAIRS)]


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
    train(settings(tmp_path, "seeds", max_steps=5, simcut=0.0))
    both = list(zip(seeds[::2], seeds[1::2], strict=True))
    assert all(source == target for source, target in both)
    assert 5 < len(both) <= 10
    assert len(set(seeds)) == len(both)


REGULARISED = {"simcut": 3.0, "cutoff": 0.2, "bpe_dropout": 0.2, "accumulate": 2, "save_every": 7}


def settings(folder: Path, out: str, **changes: object) -> TrainConfig:
    tree = SMALL | {"train": SMALL["train"] | REGULARISED | changes}
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
    plain = settings(tmp_path, "plain", simcut=0.0, bpe_dropout=0.0)
    train(plain)
    assert weights(tmp_path / "plain", 20) != weights(tmp_path / "whole", 20)


def test_dropout_of_merges_needs_merges(tmp_path: Path):
    reversals(tmp_path)
    tree = settings(tmp_path, "unigram").model_dump(exclude_none=True)
    tree["tokenizer"]["kind"] = "unigram"
    with pytest.raises(SettingsError, match="kind is unigram; use kind bpe, or bpe_dropout 0"):
        validate(TrainConfig, tree)


def test_the_memory_of_a_second_look_is_counted():
    assert at_once(chosen(), 1000) == at_once(chosen(simcut=1.0), 1000) / 2 == 64
    assert at_once(chosen(simcut=1.0), 10) == 20


def test_a_pair_that_would_be_too_long_for_the_model_keeps_its_cuts(tmp_path: Path):
    reversals(tmp_path)
    tree = settings(tmp_path, "long", bpe_dropout=0.9, max_steps=5).model_dump(exclude_none=True)
    tree["data"]["max_length"] = tree["model"]["max_length"] = 13
    tree["data"]["max_length"] = 12
    train(validate(TrainConfig, tree))
