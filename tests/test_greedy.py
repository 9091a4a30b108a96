import pytest
from tables import TableStepper, beam_by_hand, greedy_by_hand, random_table

from transduce.decode.constraints import Constraints
from transduce.decode.greedy import greedy
from transduce.decode.search import SearchOptions, search
from transduce.ids import EOS

LIMITS = [5, 9, 1, 7, 2, 12]


@pytest.mark.parametrize("grid", [0, 0.5, 2.0])
@pytest.mark.parametrize("min_length", [0, 4])
def test_greedy_takes_the_likeliest_and_the_lowest_of_equals(grid, min_length):
    for seed in range(10):
        table = random_table(seed, grid=grid)
        stepper = TableStepper(table, len(LIMITS), 1)
        rules = Constraints(LIMITS, min_length=min_length)
        found = greedy(stepper, rules, alpha=0.6)
        expected = [
            greedy_by_hand(table, i, limit=limit, min_length=min_length)[0]
            for i, limit in enumerate(LIMITS)
        ]
        assert [one.tokens for one in found] == expected
        assert [one.cut for one in found] == [
            len(tokens) + 1 == limit for tokens, limit in zip(expected, LIMITS, strict=True)
        ]
        # Whoever has ended is not scored again.
        lengths = [len(tokens) + 1 for tokens in expected]
        assert stepper.rows_scored == [
            sum(t <= length for length in lengths) for t in range(1, max(lengths) + 1)
        ]


def test_scores_are_those_of_the_tokens():
    table = random_table(1)
    [best, _] = greedy(TableStepper(table, 2, 1), Constraints([9, 9]), alpha=0.6)
    ids = [*best.tokens, EOS]
    assert list(best.token_log_probs) == [table(0, tuple(ids[:t]))[ids[t]] for t in range(len(ids))]
    assert best.log_prob == pytest.approx(sum(best.token_log_probs), abs=1e-5)
    assert best.length == len(ids)
    assert best.score == best.log_prob / ((5 + len(ids)) / 6) ** 0.6


def test_a_beam_of_one_is_greedy():
    """And not the beam's own rule at k = 1, which goes on after the first end."""
    differs = 0
    for seed in range(20):
        table = random_table(seed)
        found = search(TableStepper(table, 1, 1), Constraints([9]), SearchOptions(beam=1))
        assert found == [greedy(TableStepper(table, 1, 1), Constraints([9]), alpha=0.6)]
        differs += found[0][0].tokens != beam_by_hand(table, 0, k=1, limit=9)[0][0][1]
    assert differs
