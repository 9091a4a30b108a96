"""Every pair once, within the budget, with little padding, in an order that three numbers fix."""

import time
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from transduce.data.batching import collate, pad, plan
from transduce.ids import BOS, EOS, PAD
from transduce.text.corpus import read_pairs
from transduce.text.tokenizer import TokenizerConfig, train_tokenizer

MULTI30K = Path(__file__).parents[2] / "shared" / "data" / "multi30k" / "raw"
TABLE = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=80).map(
    lambda rows: np.array(rows, dtype=np.int32).reshape(-1, 2)
)


def flat(steps):
    return [batch for step in steps for batch in step]


def contents(steps):
    return [[batch.tolist() for batch in step] for step in steps]


def lengths_like_text(pairs, seed=0):
    random = np.random.default_rng(seed)
    source = random.gamma(8, 2, size=pairs).astype(np.int32) + 1
    target = np.maximum(1, source + random.normal(0, 3, size=pairs)).astype(np.int32)
    return np.stack([source, target], axis=1)


def padding(lengths, steps):
    """The share of cells on both sides, marks included, that hold nothing."""
    marked = lengths.astype(np.int64) + 1
    cells = sum(len(batch) * int(marked[batch].max(axis=0).sum()) for batch in flat(steps))
    return 1 - int(marked.sum()) / cells


@given(TABLE, st.integers(1, 200), st.integers(0, 5), st.integers(0, 5), st.integers(1, 4))
def test_every_pair_comes_once_within_the_budget(lengths, tokens, seed, epoch, accumulate):
    steps = plan(lengths, tokens, seed=seed, epoch=epoch, accumulate=accumulate)
    rows = [row for batch in flat(steps) for row in batch.tolist()]
    assert sorted(rows) == list(range(len(lengths)))
    for batch in flat(steps):
        assert len(batch) == 1 or len(batch) * (int(lengths[batch].max()) + 1) <= tokens
        assert len(batch) > 0
    assert all(len(step) == accumulate for step in steps[:-1])
    assert all(0 < len(step) <= accumulate for step in steps)


@given(TABLE, st.integers(0, 5), st.integers(0, 5))
def test_a_plan_is_a_function_of_its_arguments(lengths, seed, epoch):
    first = plan(lengths, 64, seed=seed, epoch=epoch)
    np.random.default_rng().random()
    assert contents(first) == contents(plan(lengths.copy(), 64, seed=seed, epoch=epoch))


def test_steps_only_group_the_same_batches():
    lengths = lengths_like_text(2000)
    single = plan(lengths, 512, seed=1, epoch=0)
    grouped = plan(lengths, 512, seed=1, epoch=0, accumulate=3)
    assert [b.tolist() for b in flat(single)] == [b.tolist() for b in flat(grouped)]
    assert len(grouped) == -(-len(single) // 3)


def test_seeds_and_epochs_differ_in_order_and_in_company():
    lengths = lengths_like_text(2000)
    plans = [plan(lengths, 512, seed=s, epoch=e) for s, e in ((1, 0), (1, 1), (2, 0))]
    companies = [{frozenset(batch.tolist()) for batch in flat(steps)} for steps in plans]
    for a, b in ((0, 1), (0, 2), (1, 2)):
        assert contents(plans[a]) != contents(plans[b])
        assert len(companies[a] & companies[b]) < len(companies[a]) / 20


def test_batches_come_in_random_order_of_length():
    lengths = lengths_like_text(20_000)
    longest = [int(lengths[batch].max()) for batch in flat(plan(lengths, 1024, seed=1, epoch=0))]
    assert abs(np.corrcoef(longest, np.arange(len(longest)))[0, 1]) < 0.2


def test_batches_are_full():
    lengths = lengths_like_text(20_000)
    batches = flat(plan(lengths, 1024, seed=1, epoch=0))
    used = [len(batch) * (int(lengths[batch].max()) + 1) for batch in batches]
    assert np.mean(used) > 0.93 * 1024


def test_the_budget_may_be_used_up():
    lengths = np.full((24, 2), 7, dtype=np.int32)
    assert max(len(batch) for batch in flat(plan(lengths, 64, seed=1, epoch=0))) == 8


def test_a_corpus_that_fits_is_one_batch():
    lengths = np.full((8, 2), 7, dtype=np.int32)
    for epoch in range(4):
        assert len(plan(lengths, 64, seed=1, epoch=epoch)) == 1
        assert len(plan(lengths, 10**12, seed=1, epoch=epoch)) == 1


def test_which_pairs_of_equal_lengths_meet_is_drawn_by_lot():
    lengths = np.full((1000, 2), 7, dtype=np.int32)
    for batch in flat(plan(lengths, 400, seed=1, epoch=0)):
        assert np.ptp(batch) > 500


def test_a_longer_pair_makes_a_batch_of_its_own():
    lengths = np.array([[3, 3], [500, 2], [2, 3], [1, 700]], dtype=np.int32)
    batches = sorted(batch.tolist() for batch in flat(plan(lengths, 64, seed=1, epoch=0)))
    assert [1] in batches
    assert [3] in batches


def test_no_pairs_make_no_steps():
    assert plan(np.zeros((0, 2), dtype=np.int32), 64, seed=1, epoch=0) == []


@pytest.mark.parametrize("seed", range(3))
def test_little_is_padded(seed):
    lengths = lengths_like_text(50_000)
    assert padding(lengths, plan(lengths, 4096, seed=seed, epoch=seed)) < 0.027


def test_a_million_pairs_are_planned_at_once():
    lengths = lengths_like_text(1_000_000)
    start = time.process_time()
    plan(lengths, 4096, seed=1, epoch=0)
    assert time.process_time() - start < 5


@pytest.mark.skipif(not MULTI30K.exists(), reason=f"Multi30k is not there ({MULTI30K})")
def test_less_than_a_twentieth_of_multi30k_is_padded():
    pairs = list(read_pairs(MULTI30K / "train.en.gz", MULTI30K / "train.de.gz"))
    texts = (text for pair in pairs for text in pair)
    tokenizer = train_tokenizer(texts, TokenizerConfig(), vocab_size=8000)
    assert tokenizer.size == 8000
    sides = [tokenizer.encode_all(side, threads=2) for side in zip(*pairs, strict=True)]
    lengths = np.array([[len(ids) for ids in side] for side in sides], dtype=np.int32).T
    for epoch in range(5):
        assert padding(lengths, plan(lengths, 4096, seed=1, epoch=epoch)) < 0.04


def test_rows_are_padded_on_the_right():
    assert pad([[5, 6], [7]]).tolist() == [[5, 6], [7, PAD]]
    assert pad([[5, 6], [7]]).dtype == torch.int64
    assert pad([]).shape == (0, 0)
    assert pad([[], []]).shape == (2, 0)


def test_a_batch_has_the_marks_where_the_model_wants_them():
    batch = collate([([4, 5], [6, 7, 8]), ([9], [])])
    assert batch.source.tolist() == [[4, 5, EOS], [9, EOS, PAD]]
    assert batch.decoder_input.tolist() == [[BOS, 6, 7, 8], [BOS, PAD, PAD, PAD]]
    assert batch.labels.tolist() == [[6, 7, 8, EOS], [EOS, PAD, PAD, PAD]]
    assert batch.tokens == 5


@given(st.lists(st.tuples(st.lists(st.integers(4, 99)), st.lists(st.integers(4, 99))), min_size=1))
def test_each_target_has_one_end_and_each_label_the_token_before_it(pairs):
    batch = collate(pairs)
    assert (batch.source == EOS).sum(dim=1).tolist() == [1] * len(pairs)
    assert (batch.labels == EOS).sum(dim=1).tolist() == [1] * len(pairs)
    assert (
        batch.tokens == int((batch.labels != PAD).sum()) == int((batch.decoder_input != PAD).sum())
    )
    inside = batch.decoder_input[:, 1:] != PAD
    assert torch.equal(batch.decoder_input[:, 1:][inside], batch.labels[:, :-1][inside])
