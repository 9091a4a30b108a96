"""The tree of a search: what it says is what the search did."""

import itertools
import math
from functools import cache

import pytest
import torch
from tables import Table, allowed, every_output, penalty

from transduce.decode.constraints import Constraints
from transduce.decode.search import SearchOptions, search
from transduce.decode.stepper import ModelStepper
from transduce.ids import BOS, EOS
from transduce.model.config import TransformerConfig
from transduce.model.transformer import Transformer
from transduce.trace.search import ALTERNATIVES, Tree, search_tree

SOURCE = [5, 4, 6, 7, EOS]
PENALTIES = [0.0, 0.6, 1.5]


def make(seed: int, *, vocabulary: int = 12) -> Transformer:
    torch.manual_seed(seed)
    config = TransformerConfig(
        source_vocab_size=vocabulary, target_vocab_size=vocabulary, d_model=16, heads=2, d_ff=32,
        encoder_layers=1, decoder_layers=2, max_length=32,
        tie=["all", "decoder", "none"][seed % 3], norm=["post", "pre"][seed % 2],
    )  # fmt: skip
    model = Transformer(config).eval()
    with torch.no_grad():  # initial weights are nearly indifferent to what they read
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(2)
        if config.tie == "none":  # where it is not tied an end may be likely
            model.output.weight[EOS] *= 2
    return model


MODELS = [make(seed) for seed in range(8)]


def table_of(model: Transformer) -> Table:
    """Log-probabilities by whole passes: no cache, no search."""

    @cache
    @torch.no_grad()
    def table(_: int, prefix: tuple[int, ...]) -> list[float]:
        logits = model(torch.tensor([SOURCE]), torch.tensor([[BOS, *prefix]]))[0, -1]
        return logits.log_softmax(-1).tolist()

    return table


TABLES = {model: table_of(model) for model in MODELS}


def found_by(model: Transformer, *, beam: int, n_best: int, alpha: float, limit: int, prefix=()):
    stepper = ModelStepper(model, torch.tensor([SOURCE]), width=beam, capacity=limit)
    options = SearchOptions(beam=beam, n_best=n_best, alpha=alpha)
    (found,) = search(stepper, Constraints([limit], prefixes=[prefix]), options)
    return found


def paths(tree: Tree) -> list[tuple[int, ...]]:
    """The tokens of each node, from the first."""
    found: list[tuple[int, ...]] = []
    for node in tree.nodes:
        assert node.id == len(found)
        found.append((*(() if node.parent is None else found[node.parent]), node.token))
    return found


@pytest.mark.parametrize(("beam", "alpha"), [(2, 0.0), (4, 0.6), (5, 1.5)])
def test_a_tree_has_the_steps_that_a_search_by_hand_takes(beam, alpha):
    for model in MODELS[:6]:
        limit, table = 9, TABLES[model]
        tree = search_tree(model, SOURCE, beam=beam, alpha=alpha, limit=limit)
        told = [
            (node.step, path, node.state)
            for node, path in zip(tree.nodes, paths(tree), strict=True)
        ]
        by_hand, opened = [], [(0.0, ())]
        for t in range(1, max(node.step for node in tree.nodes) + 1):
            extensions = [
                (-(total + p), parent, i)
                for parent, (total, tokens) in enumerate(opened)
                for i, p in enumerate(allowed(table(0, tokens), tokens, limit=limit))
                if p > -math.inf
            ]
            best = sorted(extensions)[: 2 * beam]
            others = [one for one in best if one[2] != EOS][:beam]
            for one in best:
                state = "finished" if one[2] == EOS else "kept" if one in others else "pruned"
                by_hand.append((t, (*opened[one[1]][1], one[2]), state))
            opened = [(-minus, (*opened[parent][1], i)) for minus, parent, i in others]
        assert told == by_hand


@pytest.mark.parametrize(("beam", "alpha"), [(1, 0.0), (2, 1.5), (4, 0.6), (5, 0.0)])
def test_edges_sum_to_the_sums_and_are_what_the_model_says(beam, alpha):
    for model in MODELS:
        tree = search_tree(model, SOURCE, beam=beam, alpha=alpha, limit=12)
        table = TABLES[model]
        for node, path in zip(tree.nodes, paths(tree), strict=True):
            assert node.step == len(path)
            above = 0.0 if node.parent is None else tree.nodes[node.parent].sum
            assert node.parent is None or tree.nodes[node.parent].state == "kept"
            assert node.sum == pytest.approx(above + node.log_prob, abs=1e-5)
            assert node.log_prob == pytest.approx(table(0, path[:-1])[node.token], abs=1e-4)
        for _, group in itertools.groupby(tree.nodes, key=lambda node: node.step):
            step = list(group)
            assert [node.sum for node in step] == sorted((n.sum for n in step), reverse=True)
            assert sum(node.state == "kept" for node in step) <= beam
            assert len(step) <= max(2 * beam, ALTERNATIVES)
        for end, found in tree.finished:
            assert (*found.tokens, EOS) == paths(tree)[end]
            assert found.score == pytest.approx(
                tree.nodes[end].sum / penalty(found.length, alpha), abs=1e-6
            )
            assert sum(found.token_log_probs) == pytest.approx(found.log_prob, abs=1e-4)
        ends = {node.id for node in tree.nodes if node.state == "finished"}
        assert ends == {end for end, _ in tree.finished}
        assert all(tree.nodes[end].token == EOS for end in ends)


@pytest.mark.parametrize(
    ("limit", "alpha"), [(1, 0.6), (4, 0.0), (4, 1.5), *((12, alpha) for alpha in PENALTIES)]
)
def test_the_winner_is_that_of_an_ordinary_search(limit, alpha):
    for model, beam in itertools.product(MODELS[:4], (1, 2, 5)):
        tree = search_tree(model, SOURCE, beam=beam, alpha=alpha, limit=limit)
        best = found_by(model, beam=beam, n_best=1, alpha=alpha, limit=limit)
        assert tree.finished[0][1] == best[0]  # every number, to the bit
        many = found_by(model, beam=beam, n_best=beam, alpha=alpha, limit=limit)
        assert [one for _, one in tree.finished[: len(many)]] == many
        assert tree.finished[0][1].cut == (tree.finished[0][1].length == limit)


@pytest.mark.parametrize("alpha", PENALTIES)
def test_a_wide_tree_holds_every_output(alpha):
    limit = 4
    for seed in range(3):
        model = make(seed, vocabulary=8)  # four real tokens
        source = [5, 4, 6, EOS]

        @torch.no_grad()
        def table(_, prefix, model=model, source=source):
            logits = model(torch.tensor([source]), torch.tensor([[BOS, *prefix]]))[0, -1]
            return logits.log_softmax(-1).tolist()

        tree = search_tree(model, source, beam=300, alpha=alpha, limit=limit)
        best = every_output(table, 0, limit=limit, alpha=alpha)
        assert [one.tokens for _, one in tree.finished[:5]] == [tokens for _, tokens in best[:5]]
        assert len(tree.finished) == len(best) == 1 + 4 + 4**2 + 4**3
        assert all(node.state != "pruned" for node in tree.nodes)


def test_a_greedy_tree_is_a_path_with_the_likeliest_alternatives():
    for model in MODELS:
        tree = search_tree(model, SOURCE, beam=1, alpha=0.6, limit=12)
        table, tokens = TABLES[model], ()
        for step, group in itertools.groupby(tree.nodes, key=lambda node: node.step):
            nodes = list(group)
            row = allowed(table(0, tokens), tokens, limit=12)
            order = sorted(range(len(row)), key=lambda i: (-row[i], i))
            ways = [i for i in order if row[i] > -math.inf][:ALTERNATIVES]
            assert [node.token for node in nodes] == ways
            assert [node.state for node in nodes[1:]] == ["pruned"] * (len(ways) - 1)
            assert nodes[0].state == ("finished" if ways[0] == EOS else "kept")
            assert step == len(tokens) + 1
            tokens = (*tokens, ways[0])
        assert tokens[-1] == EOS
        assert tree.finished[0][1] == found_by(model, beam=1, n_best=1, alpha=0.6, limit=12)[0]


@pytest.mark.parametrize("beam", [1, 4])
@pytest.mark.parametrize("prefix", [(7,), (9, 9, 4), (8, EOS), (EOS,)])
def test_what_is_forced_has_no_alternative(beam, prefix):
    for model in MODELS[:4]:
        tree = search_tree(model, SOURCE, beam=beam, alpha=0.6, limit=12, prefix=prefix)
        for step, token in enumerate(prefix, start=1):
            assert [node.token for node in tree.nodes if node.step == step] == [token]
        best = found_by(model, beam=beam, n_best=1, alpha=0.6, limit=12, prefix=prefix)
        assert tree.finished[0][1] == best[0]
        assert (*best[0].tokens, EOS)[: len(prefix)] == prefix
