import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tables import TableStepper, beam_by_hand, every_output, greedy_by_hand, random_table

from transduce.decode.beam import best_extensions
from transduce.decode.constraints import Constraints
from transduce.decode.greedy import Hypothesis, length_penalty
from transduce.decode.search import SearchOptions, search
from transduce.decode.stepper import EnsembleStepper, ModelStepper, Stepper
from transduce.errors import SettingsError
from transduce.ids import BOS, EOS, UNK
from transduce.model.config import TransformerConfig
from transduce.model.transformer import Transformer

LIMITS = [5, 9, 1, 7, 2, 12]
PENALTIES = [0.0, 0.6, 1.0]


def run(table, limits, *, prefixes=None, **options):
    """Search sentences of a table; returns what was found and the stepper."""
    chosen = SearchOptions(**options)
    stepper = TableStepper(table, len(limits), chosen.beam)
    rules = Constraints(
        limits,
        min_length=chosen.min_length,
        no_repeat_ngram=chosen.no_repeat_ngram,
        prefixes=prefixes,
    )
    return search(stepper, rules, chosen), stepper


def outputs(found: list[list[Hypothesis]]):
    return [[(one.score, one.tokens) for one in hypotheses] for hypotheses in found]


@pytest.mark.parametrize("alpha", PENALTIES)
@pytest.mark.parametrize("grid", [0, 0.5, 2.0])
@pytest.mark.parametrize(("k", "n"), [(2, 1), (3, 3), (5, 2)])
def test_a_narrow_beam_is_the_one_by_hand_also_among_ties(k, n, grid, alpha):
    for seed in range(6):
        table = random_table(seed, grid=grid)
        found, stepper = run(table, LIMITS, beam=k, n_best=n, alpha=alpha)
        by_hand = [
            beam_by_hand(table, i, k=k, n=n, limit=limit, alpha=alpha)
            for i, limit in enumerate(LIMITS)
        ]
        assert outputs(found) == [best for best, _ in by_hand]
        # A sentence leaves in the step that ends it, and is never advanced after.
        steps = [taken for _, taken in by_hand]
        rows = [k * sum(t <= taken for taken in steps) for t in range(1, max(steps) + 1)]
        assert stepper.rows_scored == rows


@pytest.mark.parametrize("alpha", PENALTIES)
def test_a_wide_beam_finds_the_best_of_all_outputs(alpha):
    for seed in range(20):
        table = random_table(seed)
        found, _ = run(table, [4, 3], beam=300, n_best=5, alpha=alpha)
        for i, limit in enumerate([4, 3]):
            best = every_output(table, i, limit=limit, alpha=alpha)[:5]
            assert outputs(found)[i] == best


@pytest.mark.parametrize("alpha", PENALTIES)
def test_a_wide_beam_finds_the_best_of_all_outputs_of_a_transformer(small_models, alpha):
    for model in small_models:
        source = torch.tensor([[5, 4, 6, EOS], [6, 5, EOS, 0], [4, EOS, 0, 0]])
        limit, k = 4, 30
        stepper = ModelStepper(model, source, width=k, capacity=limit)
        options = SearchOptions(beam=k, n_best=3, alpha=alpha)
        found = search(stepper, Constraints([limit] * 3), options)
        for i, row in enumerate(source):
            row = row[row != 0][None]
            everything = [
                (
                    forced_log_prob(model, row, tokens) / length_penalty(len(tokens) + 1, alpha),
                    tokens,
                )
                for length in range(limit)
                for tokens in itertools.product(range(4, 7), repeat=length)
            ]
            best = sorted(everything, reverse=True)[:3]
            assert [one.tokens for one in found[i]] == [tokens for _, tokens in best]
            assert [one.score for one in found[i]] == pytest.approx([s for s, _ in best], abs=1e-4)


@torch.no_grad()
def forced_log_prob(model, source, tokens) -> float:
    """Score an output by the model's whole forward pass: no cache, no search."""
    logits = model(source, torch.tensor([[BOS, *tokens]]))[0]
    return logits.log_softmax(-1)[range(len(tokens) + 1), [*tokens, EOS]].sum().item()


@pytest.fixture(scope="module")
def small_models():
    models = []
    for seed in range(4):
        torch.manual_seed(seed)
        config = TransformerConfig(
            source_vocab_size=7, target_vocab_size=7, d_model=16, heads=2, d_ff=32,
            encoder_layers=1, decoder_layers=2, max_length=32,
        )  # fmt: skip
        model = Transformer(config).eval()
        with torch.no_grad():  # initial weights are nearly indifferent to what they read
            for parameter in model.parameters():
                parameter.mul_(2)
        models.append(model)
    return models


def test_the_cache_follows_the_beams(small_models):
    source = torch.tensor([[5, 4, 6, EOS], [6, 5, EOS, 0]])
    for model in small_models:
        stepper = ModelStepper(model, source, width=4, capacity=12)
        rules = Constraints([12, 12], min_length=9)
        for row, hypotheses in zip(
            source, search(stepper, rules, SearchOptions(beam=4, n_best=4)), strict=True
        ):
            for one in hypotheses:
                again = forced_log_prob(model, row[row != 0][None], one.tokens)
                assert one.log_prob == pytest.approx(again, abs=1e-4)


@pytest.mark.parametrize("options", [{"beam": 5, "n_best": 5}, {"beam": 1}])
def test_without_a_cache_the_same_is_found(small_models, options):
    source = torch.tensor([[5, 4, 6, 4, EOS], [6, 5, EOS, 0, 0], [4, 4, 5, EOS, 0]])
    limits = [14, 5, 9]
    chosen = SearchOptions(**options)
    for model in small_models:

        @torch.no_grad()
        def table(sentence, prefix, model=model):
            row = source[sentence][source[sentence] != 0][None]
            return model(row, torch.tensor([[BOS, *prefix]]))[0, -1].log_softmax(-1).tolist()

        cached = ModelStepper(model, source, width=chosen.beam, capacity=14)
        found = search(cached, Constraints(limits, min_length=6), chosen)
        expected, _ = run(table, limits, min_length=6, **options)
        for ours, theirs in zip(found, expected, strict=True):
            assert [one.tokens for one in ours] == [one.tokens for one in theirs]
            assert [one.score for one in ours] == pytest.approx([o.score for o in theirs], abs=1e-4)


def test_a_model_stepper_scores_the_selected_prefixes(small_models):
    model = small_models[0]
    source = torch.tensor([[5, 4, EOS], [6, EOS, 0], [4, 4, EOS]])
    stepper = ModelStepper(model, source, width=2, capacity=4)
    assert isinstance(stepper, Stepper)
    stepper.score(torch.full((6,), BOS))
    stepper.score(torch.tensor([4, 5, 6, 4, 5, 6]))
    stepper.select(torch.tensor([1, 0, 5, 5]))  # the middle sentence leaves
    scored = stepper.score(torch.tensor([6, 6, 4, 5]))
    prefixes = torch.tensor([[BOS, 5, 6], [BOS, 4, 6], [BOS, 6, 4], [BOS, 6, 5]])
    with torch.no_grad():
        fresh = model(source[[0, 0, 2, 2]], prefixes)[:, -1].log_softmax(-1)
    assert torch.allclose(scored, fresh, atol=1e-5)
    assert scored.dtype == torch.float32


def test_the_best_extensions_are_in_order_among_any_ties():
    generator = torch.Generator().manual_seed(3)
    for _ in range(100):
        n, k, v = 3, 4, 50
        log_probs = -torch.randint(0, 8, (n * k, v), generator=generator) / 4
        log_probs[torch.rand(n * k, v, generator=generator) < 0.5] = -torch.inf
        sums = -torch.randint(0, 3, (n, k), generator=generator) / 4
        sums[0, 1:] = -torch.inf
        found = best_extensions(sums, log_probs, count=8)
        totals = sums[:, :, None] + log_probs.view(n, k, v)
        for i in range(n):
            ranked = sorted(
                (-totals[i, parent, token].item(), parent, token)
                for parent in range(k)
                for token in range(v)
                if totals[i, parent, token] > -torch.inf
            )[:8]
            got = list(
                zip(
                    (-found.sums[i]).tolist(),
                    found.parents[i].tolist(),
                    found.ids[i].tolist(),
                    strict=True,
                )
            )
            assert got == ranked
            rows = found.parents[i] + i * k
            assert torch.equal(found.log_probs[i], log_probs[rows, found.ids[i]])


def scripted(steps):
    """A table that depends on the prefix as written; what is not written has -50."""

    def table(sentence, prefix):
        row = [-50.0] * 8
        for token, value in steps.get(prefix, {EOS: -1.0}).items():
            row[token] = value
        return row

    return table


def test_a_longer_output_wins_by_the_penalty():
    # "4" ends at once with -2.0; "5 6 7" ends with -2.2 in all.
    table = scripted(
        {
            (): {4: -1.5, 5: -1.6},
            (4,): {EOS: -0.5},
            (5,): {6: -0.2},
            (5, 6): {7: -0.2},
            (5, 6, 7): {EOS: -0.2},
        }
    )
    by_alpha = {
        alpha: run(table, [10], beam=2, n_best=1, alpha=alpha)[0][0][0] for alpha in PENALTIES
    }
    assert by_alpha[0.0].tokens == (4,)
    assert by_alpha[0.0].score == pytest.approx(-2.0)
    for alpha in (0.6, 1.0):
        assert by_alpha[alpha].tokens == (5, 6, 7)
        assert by_alpha[alpha].length == 4
        assert by_alpha[alpha].score == pytest.approx(-2.2 / (9 / 6) ** alpha, abs=1e-6)


@pytest.mark.parametrize(
    ("log_prob", "length", "alpha", "score"),
    [
        (-4.0, 4, 0.0, -4.0),
        (-4.0, 4, 0.6, -3.136210727),
        (-4.0, 4, 1.0, -2.666666667),
        (-5.5, 9, 0.6, -3.308084682),
        (-9.0, 20, 0.6, -3.822691532),
        (-9.0, 20, 1.0, -2.160000000),
    ],
)
def test_the_penalty_is_the_documented_formula(log_prob, length, alpha, score):
    assert log_prob / length_penalty(length, alpha) == pytest.approx(score, abs=1e-8)
    each = log_prob / length

    def table(sentence, prefix):
        row = [-80.0] * 8
        row[EOS if len(prefix) == length - 1 else 5] = each
        return row

    best = run(table, [length + 3], beam=3, alpha=alpha)[0][0][0]
    assert best.length == length
    assert best.log_prob == pytest.approx(log_prob, abs=1e-5)
    assert best.score == pytest.approx(score, abs=1e-5)


def test_lengths_are_bounded_and_a_forced_end_is_said():
    def never_ends(sentence, prefix):
        return [-9.0, -9.0, -30.0, -9.0, -1.0, -2.0]

    found, _ = run(never_ends, [3, 6], beam=2)
    assert [one.length for [one] in found] == [3, 6]
    assert [one.tokens for [one] in found] == [(4, 4), (4,) * 5]
    assert all(one.cut for [one] in found)

    def ends_at_once(sentence, prefix):
        return [-9.0, -9.0, -0.1, -9.0, -3.0, -4.0]

    found, _ = run(ends_at_once, [9, 2], beam=2, min_length=4)
    assert [one.length for [one] in found] == [4, 2]  # the limit is stronger
    assert [one.cut for [one] in found] == [False, True]
    assert run(ends_at_once, [9], beam=2)[0][0][0].tokens == ()


@pytest.mark.parametrize("k", [1, 3])
def test_a_prefix_is_forced_at_its_own_price(k):
    prefixes = [[8, 4, 8], [], [7, 7, 7, 7, 7, 7], [UNK]]
    limits = [9, 9, 4, 9]
    for seed in range(5):
        table = random_table(seed)
        found, _ = run(table, limits, beam=k, n_best=k, prefixes=prefixes, min_length=2)
        assert [one.tokens[:3] for one in found[0]] == [(8, 4, 8)] * len(found[0])
        assert found[2][0].tokens == (7, 7, 7)
        assert found[2][0].cut
        assert found[3][0].tokens[0] == UNK
        for i, hypotheses in enumerate(found):
            for one in hypotheses:
                ids = [*one.tokens, EOS]
                paid = [table(i, tuple(ids[:t]))[ids[t]] for t in range(len(ids))]
                assert list(one.token_log_probs) == paid  # nothing is renormalised
                assert one.log_prob == pytest.approx(sum(paid), abs=1e-4)
        if k > 1:
            for i, (limit, prefix) in enumerate(zip(limits, prefixes, strict=True)):
                best, _ = beam_by_hand(table, i, k=k, n=k, limit=limit, min_length=2, prefix=prefix)
                assert outputs(found)[i] == best


def test_the_n_best_are_distinct_and_sorted_and_fewer_where_no_more_exist():
    for seed in range(10):
        found, _ = run(random_table(seed), [8, 2, 1], beam=8, n_best=8)
        assert [len(hypotheses) for hypotheses in found] == [8, 6, 1]
        for hypotheses in found:
            assert len({one.tokens for one in hypotheses}) == len(hypotheses)
            scores = [one.score for one in hypotheses]
            assert scores == sorted(scores, reverse=True)
            for one in hypotheses:
                assert all(token > UNK for token in one.tokens)
                assert one.length == len(one.tokens) + 1 == len(one.token_log_probs)


@st.composite
def searches(draw):
    """A table, sentences with limits and forced prefixes, and options, all of them random."""
    limits = draw(st.lists(st.integers(1, 9), min_size=1, max_size=4))
    forced = st.lists(st.integers(4, 7), max_size=4)
    prefixes = draw(st.none() | st.lists(forced, min_size=len(limits), max_size=len(limits)))
    table = random_table(
        draw(st.integers(0, 10**6)),
        vocabulary=draw(st.integers(6, 9)),
        grid=draw(st.sampled_from([0, 0.5, 2.0])),
    )
    vocabulary = len(table(0, ()))
    if prefixes is not None:
        prefixes = [[min(i, vocabulary - 1) for i in prefix] for prefix in prefixes]
    beam = draw(st.integers(1, 5))
    options = {
        "beam": beam,
        "n_best": draw(st.integers(1, beam)),
        "alpha": draw(st.sampled_from([0.0, 0.6, 1.0, 3.0])),
        "min_length": draw(st.integers(0, 12)),
        "no_repeat_ngram": draw(st.integers(0, 3)),
    }
    return table, limits, prefixes, options


@settings(max_examples=300)
@given(searches())
def test_any_search_with_any_options_is_the_one_by_hand(case):
    table, limits, prefixes, options = case
    found, _ = run(table, limits, prefixes=prefixes, **options)
    for i, limit in enumerate(limits):
        rules = {
            "limit": limit,
            "min_length": options["min_length"],
            "no_repeat_ngram": options["no_repeat_ngram"],
            "prefix": prefixes[i] if prefixes else (),
        }
        if options["beam"] == 1:
            [one] = found[i]
            assert (one.tokens, one.token_log_probs) == greedy_by_hand(table, i, **rules)
            continue
        best, _ = beam_by_hand(
            table, i, k=options["beam"], n=options["n_best"], alpha=options["alpha"], **rules
        )
        assert outputs(found)[i] == best


def ngrams(tokens, size):
    return [tuple(tokens[i : i + size]) for i in range(len(tokens) - size + 1)]


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("k", [1, 4])
def test_no_ngram_comes_twice(k, size):
    """In outputs so long that four pieces cannot but repeat themselves, where they may."""

    def loops(sentence, prefix):
        draw = random_table(5, vocabulary=8)(sentence, prefix)
        return [p - 9.0 * (i == EOS) - 3.0 * (i > 6) for i, p in enumerate(draw)]

    limits = [30, 17]
    free, _ = run(loops, limits, beam=k, n_best=k, min_length=17)
    assert all(len(set(ngrams(o.tokens, size))) < len(ngrams(o.tokens, size)) for [o, *_] in free)
    found, _ = run(loops, limits, beam=k, n_best=k, min_length=17, no_repeat_ngram=size)
    for hypotheses in found:
        assert len({one.tokens for one in hypotheses}) == k
        for one in hypotheses:
            assert len(set(ngrams(one.tokens, size))) == len(ngrams(one.tokens, size))


def test_a_wide_beam_without_repeats_finds_the_best_of_all_outputs_without():
    for seed in range(10):
        table = random_table(seed)
        for size in (1, 2):
            found, _ = run(table, [5], beam=700, n_best=5, alpha=0.6, no_repeat_ngram=size)
            best = every_output(table, 0, limit=5, alpha=0.6, no_repeat_ngram=size)[:5]
            assert outputs(found)[0] == best


@pytest.mark.parametrize("k", [1, 3])
def test_a_search_that_may_repeat_nothing_ends_before_its_least_length(k):
    """There are five pieces: after them only the end is left."""
    found, _ = run(random_table(0), [30], beam=k, min_length=20, no_repeat_ngram=1)
    [best] = found[0]
    assert sorted(best.tokens) == [4, 5, 6, 7, 8]
    assert not best.cut


def test_a_forced_prefix_may_repeat_itself_and_counts():
    def fives(sentence, prefix):
        return [-9.0, -9.0, -3.0, -9.0, -4.0, -0.1]

    for k in (1, 3):
        found, _ = run(fives, [9], beam=k, no_repeat_ngram=2, prefixes=[[5, 5, 5]])
        assert found[0][0].tokens == (5, 5, 5)


@pytest.mark.parametrize("options", [{"beam": 1}, {"beam": 3, "n_best": 3}])
def test_an_ensemble_of_tables_is_the_table_of_their_mean(options):
    for seed in range(10):
        tables = [random_table(3 * seed + i) for i in range(3)]

        def mean(sentence, prefix, tables=tables):
            rows = torch.tensor([table(sentence, prefix) for table in tables])
            return rows.double().exp().mean(0).log().float().tolist()

        chosen = SearchOptions(**options)
        members = [TableStepper(table, len(LIMITS), chosen.beam) for table in tables]
        ensemble = EnsembleStepper(members)
        assert isinstance(ensemble, Stepper)
        found = search(ensemble, Constraints(LIMITS), chosen)
        expected, _ = run(mean, LIMITS, **options)
        assert [[one.tokens for one in many] for many in found] == [
            [one.tokens for one in many] for many in expected
        ]
        for ours, theirs in zip(found, expected, strict=True):
            assert [one.score for one in ours] == pytest.approx([o.score for o in theirs], abs=1e-5)
        assert members[0].rows_scored == members[2].rows_scored


def test_an_ensemble_gives_the_value_that_its_members_agree_on_exactly():
    def table(sentence, prefix):
        row = random_table(6, vocabulary=900)(sentence, prefix)
        return [*row[:5], -float("inf"), *row[6:]]

    members = [TableStepper(table, 4, 1) for _ in range(3)]
    expected = TableStepper(table, 4, 1).score(torch.full((4,), BOS))
    assert torch.equal(EnsembleStepper(members).score(torch.full((4,), BOS)), expected)


def test_neighbours_never_change_a_search():
    table = random_table(11, grid=0.25)
    together, _ = run(table, LIMITS, beam=3, n_best=2)

    for i, limit in enumerate(LIMITS):

        def alone(sentence, prefix, i=i):
            return table(i, prefix)

        assert run(alone, [limit], beam=3, n_best=2)[0] == [together[i]]


def test_options_that_contradict_each_other_are_refused():
    with pytest.raises(SettingsError, match=r"n_best=5 .* beam=4"):
        SearchOptions(n_best=5)
    with pytest.raises(SettingsError, match=r"min_length=9 .* max_length=8"):
        SearchOptions(min_length=9, max_length=8)


def test_the_limit_grows_with_the_source_up_to_the_greatest_length():
    assert SearchOptions().limit(7) == 57
    assert SearchOptions(extra_length=3, max_length=8).limit(4) == 7
    assert SearchOptions(extra_length=3, max_length=8).limit(40) == 8
