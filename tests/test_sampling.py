"""Sampling: the frequencies are those of the filtered distribution, the draws a sentence's own."""

import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tables import TableStepper, greedy_by_hand, random_table, repeats

from transduce.config import validate
from transduce.decode.constraints import Constraints
from transduce.decode.sampling import Sampler, narrow
from transduce.decode.search import SearchOptions, search
from transduce.errors import SettingsError
from transduce.ids import EOS, UNK

LIMITS = [9, 5, 1, 12, 7]


def draw(table, limits, *, lines=None, prefixes=None, **options):
    """Sample sentences of a table: a list of samples for each."""
    chosen = SearchOptions(sample=True, **options)
    n = chosen.n_best

    def each(row, prefix):
        return table(row // n, prefix)

    rules = Constraints(
        [limit for limit in limits for _ in range(n)],
        min_length=chosen.min_length,
        no_repeat_ngram=chosen.no_repeat_ngram,
        prefixes=prefixes and [prefix for prefix in prefixes for _ in range(n)],
    )
    return search(TableStepper(each, len(limits) * n, 1), rules, chosen, lines=lines)


def filtered(log_probs, temperature=1.0, top_k=0, top_p=1.0) -> list[float]:
    """The distribution in plain Python: temperature, then top-k, then nucleus."""
    weights = [math.exp(p / temperature) for p in log_probs]
    order = sorted(range(len(weights)), key=lambda i: (-weights[i], i))
    order = order[: top_k or None]
    total = sum(weights[i] for i in order)
    kept, mass = [], 0.0
    for i in order:
        if mass >= top_p:
            break
        kept.append(i)
        mass += weights[i] / total
    total = sum(weights[i] for i in kept)
    return [weights[i] / total if i in kept else 0.0 for i in range(len(weights))]


FILTERS = [
    {},
    {"temperature": 0.5},
    {"temperature": 1.7},
    {"top_k": 4},
    {"top_p": 0.7},
    {"temperature": 1.5, "top_k": 6, "top_p": 0.8},
]


@pytest.mark.parametrize("filters", FILTERS)
def test_the_filters_are_those_by_hand(filters):
    for seed in range(50):
        row = random_table(seed, vocabulary=20)(0, ())
        with_all = {"temperature": 1.0, "top_k": 0, "top_p": 1.0} | filters
        found = narrow(torch.tensor([row, row[::-1]]), **with_all).softmax(1)
        assert found[0].tolist() == pytest.approx(filtered(row, **filters), abs=1e-6)
        assert found[1].tolist() == pytest.approx(filtered(row[::-1], **filters), abs=1e-6)


def test_the_temperature_comes_before_the_filters_and_top_k_before_top_p():
    """Where another order would keep other pieces."""
    row = [math.log(p) for p in (0.5, 0.3, 0.1, 0.1)]
    everything = torch.tensor([row])
    hot = narrow(everything, temperature=4.0, top_k=0, top_p=0.6).exp()
    assert (hot > 0).tolist() == [[True, True, True, False]]  # of the mass 0.32 0.28 0.21 0.21
    two = narrow(everything, temperature=1.0, top_k=2, top_p=0.6).exp()
    assert (two > 0).tolist() == [[True, False, False, False]]  # 0.5 of 0.8 is over 0.6


def test_of_equals_the_lower_ids_are_kept():
    row = torch.tensor([[-2.0, -1.0, -2.0, -1.0, -2.0, -1.0]]).log_softmax(1)
    assert kept_ids(row, top_k=2) == [1, 3]
    assert kept_ids(row, top_k=4) == [0, 1, 3, 5]
    assert kept_ids(row, top_p=0.4) == [1, 3]
    assert kept_ids(row, top_k=100) == list(range(6))


def kept_ids(row, *, top_k=0, top_p=1.0):
    found = narrow(row, temperature=1.0, top_k=top_k, top_p=top_p)
    return (found[0] > -torch.inf).nonzero()[:, 0].tolist()


@pytest.mark.parametrize("filters", FILTERS)
def test_frequencies_are_those_of_the_filtered_distribution(filters):
    """A chi-square test at a level of one in 10,000; the seed is fixed."""
    row = random_table(1, vocabulary=12)(0, ())
    sampler = Sampler(
        [(7, line, 0) for line in range(1, 201)],
        **({"temperature": 1.0, "top_k": 0, "top_p": 1.0} | filters),
    )
    log_probs = torch.tensor([row] * 200)
    counts = Counter(i for _ in range(100) for i in sampler.draw(log_probs).tolist())
    check_frequencies(counts, filtered(row, **filters))


def check_frequencies(counts, probabilities):
    draws = sum(counts.values())
    assert all(probabilities[i] > 0 for i in counts)
    alive = [i for i, p in enumerate(probabilities) if p > 0]
    square = sum(
        (counts[i] - draws * probabilities[i]) ** 2 / (draws * probabilities[i]) for i in alive
    )
    freedom = len(alive) - 1
    # Wilson and Hilferty's approximation of the quantile at 1 - 1e-4.
    bound = freedom * (1 - 2 / (9 * freedom) + 3.719 * math.sqrt(2 / (9 * freedom))) ** 3
    assert square < bound


def test_whole_outputs_have_their_probabilities():
    """Constraints come first: what they allow is renormalised to draw from, and reported as is."""
    table = random_table(3, vocabulary=7, spread=1.0)
    found = draw(table, [3], n_best=1000, seed=5)[0]
    found += draw(table, [3], n_best=1000, seed=6)[0]
    found += draw(table, [3], n_best=1000, seed=7)[0]

    def step(tokens):
        row = [p if i == EOS or i > UNK else -math.inf for i, p in enumerate(table(0, tokens))]
        return filtered(row) if len(tokens) < 2 else [float(i == EOS) for i in range(7)]

    outputs = [(), *((i,) for i in range(4, 7))]
    outputs += [(i, j) for i in range(4, 7) for j in range(4, 7)]
    expected = [
        math.prod(step(tuple(ids[:t]))[ids[t]] for t in range(len(ids)))
        for ids in ([*tokens, EOS] for tokens in outputs)
    ]
    assert sum(expected) == pytest.approx(1)
    counts = Counter(outputs.index(one.tokens) for one in found)
    check_frequencies(counts, expected)


def test_what_is_reported_is_the_models_own():
    for filters in FILTERS:
        for i, samples in enumerate(draw(random_table(2), LIMITS, n_best=3, **filters)):
            for one in samples:
                ids = [*one.tokens, EOS]
                paid = [random_table(2)(i, tuple(ids[:t]))[ids[t]] for t in range(len(ids))]
                assert list(one.token_log_probs) == paid
                assert one.log_prob == pytest.approx(sum(paid), abs=1e-4)
                assert one.score == one.log_prob / ((5 + one.length) / 6) ** 0.6
                assert one.cut == (one.length == LIMITS[i])


def test_one_likeliest_piece_is_greedy_and_so_is_no_temperature():
    for seed in range(20):
        table = random_table(seed)
        expected = [greedy_by_hand(table, i, limit=limit) for i, limit in enumerate(LIMITS)]
        for filters in ({"top_k": 1}, {"top_p": 1e-9}, {"temperature": 1e-4}):
            for temperature in (1.0, 1e-300):
                options = {"temperature": temperature} | filters
                found = draw(table, LIMITS, seed=seed, **options)
                assert [(one.tokens, one.token_log_probs) for [one] in found] == expected


def test_a_sample_is_its_lines_own():
    table = random_table(4)
    lines = [11, 3, 700_000, 4, 12]
    together = draw(table, LIMITS, lines=lines, n_best=2, seed=9)
    for i, line in enumerate(lines):

        def alone(sentence, prefix, i=i):
            return table(i, prefix)

        # Neither neighbours nor how many more are drawn changes it.
        assert draw(alone, [LIMITS[i]], lines=[line], n_best=1, seed=9)[0] == together[i][:1]
        assert draw(alone, [LIMITS[i]], lines=[line], n_best=5, seed=9)[0][:2] == together[i]

    def backwards(sentence, prefix):
        return table(4 - sentence, prefix)

    again = draw(backwards, LIMITS[::-1], lines=lines[::-1], n_best=2, seed=9)
    assert again[::-1] == together


def test_another_seed_line_or_sample_is_another_draw():
    def same(sentence, prefix):
        return random_table(1, spread=0.3)(0, prefix)

    seen = set()
    for seed in (0, 1, 2**32 - 1):
        found = draw(same, [40] * 4, min_length=30, n_best=4, seed=seed)
        seen |= {one.tokens for samples in found for one in samples}
    assert len(seen) == 3 * 4 * 4


@pytest.mark.parametrize(
    ("error", "top_k", "top_p"), [(1e-4, 0, 1.0), (1e-6, 50, 1.0), (1e-6, 0, 0.9)]
)
def test_a_small_error_of_the_numbers_leaves_the_samples(error, top_k, top_p):
    """The distribution is flat and wide, where the borders of a cumulative one lie close together:
    inverted, it gives some other draws here already."""
    rng = np.random.default_rng(0)
    exact = torch.tensor(rng.normal(size=(100, 8000)), dtype=torch.float32).log_softmax(1)
    noisy = exact + torch.tensor(rng.normal(size=(100, 8000)) * error, dtype=torch.float32)
    keys = [(1, line, 0) for line in range(100)]
    first, second = (Sampler(keys, temperature=1.0, top_k=top_k, top_p=top_p) for _ in "ab")
    for _ in range(12):
        assert torch.equal(first.draw(exact), second.draw(noisy))


@given(
    st.integers(0, 10**6), st.integers(0, 12), st.integers(0, 3), st.sampled_from([0.3, 1.0, 3.0])
)
def test_samples_keep_the_rules(seed, min_length, no_repeat_ngram, temperature):
    prefixes = [[4, 5], [], [6], [UNK], [7, 7, 7]]
    found = draw(
        random_table(seed), LIMITS, prefixes=prefixes, min_length=min_length, n_best=3,
        no_repeat_ngram=no_repeat_ngram, temperature=temperature, seed=seed,
    )  # fmt: skip
    for limit, prefix, samples in zip(LIMITS, prefixes, found, strict=True):
        assert len(samples) == 3
        for one in samples:
            free = len(prefix)
            assert list(one.tokens[:free]) == prefix[: limit - 1]
            assert all(token > UNK for token in one.tokens[free:])
            assert one.length <= limit
            if no_repeat_ngram:
                for t in range(free, len(one.tokens)):
                    assert not repeats(one.tokens[: t + 1], no_repeat_ngram)
            else:
                assert one.length >= min(min_length, limit)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sample": True, "beam": 4}, "beam=4"),
        ({"top_k": 5}, r"top_k=5 is for sampling; add sample \(--sample\)"),
        ({"top_p": 0.9}, "top_p=0.9"),
        ({"temperature": 0.5}, "temperature=0.5"),
        ({"seed": 3}, "seed=3"),
        ({"sample": True, "temperature": 0.0}, "temperature = 0.0: input should be greater than 0"),
        ({"sample": True, "top_p": 1.5}, "top_p = 1.5"),
        ({"sample": True, "top_p": 0.0}, "top_p = 0.0"),
        ({"sample": True, "top_k": -1}, "top_k = -1"),
        ({"sample": True, "seed": -1}, "seed = -1"),
        ({"sample": True, "seed": 2**32}, "seed = 4294967296"),
        ({"sample": 1}, "sample = 1"),
        ({"no_repeat_ngram": -1}, "no_repeat_ngram = -1"),
        ({"topk": 5}, "did you mean 'top_k'"),
    ],
)
def test_options_that_make_no_sense_are_refused_in_a_line(options, message):
    with pytest.raises(SettingsError, match=message) as refused:
        validate(SearchOptions, options)
    assert "\n" not in str(refused.value)


def test_a_sample_has_one_beam_and_any_number_of_samples():
    assert SearchOptions().beam == 4
    chosen = SearchOptions(sample=True, n_best=7)
    assert (chosen.beam, chosen.samples) == (1, 7)
    assert validate(SearchOptions, chosen.model_dump()) == chosen
    assert SearchOptions(sample=True, beam=1) == SearchOptions(sample=True)
