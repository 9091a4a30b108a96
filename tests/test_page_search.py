"""The searches of the page, in a real browser: node by node the tree that Python has."""

import copy
import itertools
from typing import Any

import pytest
from alive import alive, random_model, subwords
from looker import Looker

from transduce.bundle import Bundle
from transduce.decode.greedy import length_penalty
from transduce.ids import EOS
from transduce.trace.search import Tree, search_tree

TEXT = "the cat did not see the dog"
SEEDS = range(4)


def close(tree: Tree) -> bool:
    """Whether float32 could tell two paths of a step the other way round than Python does."""
    steps = itertools.groupby(tree.nodes, key=lambda node: node.step)
    sums = [[node.sum for node in nodes] for _, nodes in steps]
    scores = [one.score for _, one in tree.finished]
    return any(a - b < 1e-4 for row in [*sums, scores] for a, b in itertools.pairwise(row))


def compared(here: Any, tree: Tree, limit: int) -> None:
    """The numbers to 1e-4, all else exactly."""
    tokenizer = subwords()

    def shown(token: int) -> Any:
        piece = {EOS: "EOS"}.get(token, tokenizer.pieces([token])[0])
        return {"id": token, "piece": piece, "special": token == EOS}

    assert (here["beam"], here["alpha"]) == (tree.beam, tree.alpha)
    for ours, node in zip(here["nodes"], tree.nodes, strict=True):
        theirs = node._asdict() | {"token": shown(node.token)}
        for number in ("sum", "log_prob"):
            assert ours.pop(number) == pytest.approx(theirs.pop(number), abs=1e-4)
        assert ours == theirs
    for ours, (node, one) in zip(here["hypotheses"], tree.finished, strict=True):
        for number, theirs in [
            ("sum", one.log_prob),
            ("score", one.score),
            ("penalty", length_penalty(one.length, tree.alpha)),
        ]:
            assert ours.pop(number) == pytest.approx(theirs, abs=1e-4)
        assert ours == {
            "node": node,
            "text": tokenizer.decode(one.tokens),
            "tokens": [shown(each) for each in (*one.tokens, EOS)],
            "length": one.length,
            "cut": one.length >= limit,
        }


def both(page: Any, bundle: Bundle, requests: list[dict[str, Any]]) -> list[Tree]:
    """Compare what the page and what Python find, where no two paths are too close; return it."""
    answers = page.evaluate(
        "all => Promise.all(all.map(async (x) => (await transduce.trace(x)).traces[0].searches))",
        [{"text": TEXT, **one} for one in requests],
    )
    source = [*subwords().encode(TEXT), EOS]
    limit = bundle.model.config.max_length
    assert limit < len(source) + 49
    trees = []
    for here, one in zip(answers, requests, strict=True):
        for name, beam in (("greedy", 1), ("beam", one["beam"])):
            tree = search_tree(bundle.model, source, limit=limit, **{**one, "beam": beam})
            if not close(tree):
                compared(copy.deepcopy(here[name]), tree, limit)
                trees.append(tree)
    return trees


@pytest.mark.parametrize("ends", [1.0, 3.0, 6.0])
def test_a_search_is_the_tree_that_python_has(look: Looker, ends: float):
    trees: list[Tree] = []
    for seed in SEEDS:
        bundle = random_model(seed, ends=ends)
        widths = [(1, 0.6), (2, 0.0), (2, 1.5), (4, 0.6), (4, 1.5), (5, 0.0)]
        requests = [{"beam": beam, "alpha": alpha} for beam, alpha in widths]
        trees += both(look.open(alive(bundle, TEXT)), bundle, requests)
    assert {tree.beam for tree in trees} == {1, 2, 4, 5}
    assert len(trees) >= 20
    if ends > 1:
        assert {one.cut for tree in trees for _, one in tree.finished} == {True, False}


def test_a_forced_beginning_is_kept_and_may_end(look: Looker):
    trees: list[Tree] = []
    for seed in SEEDS:
        bundle = random_model(seed, ends=3.0)
        prefixes = [[270], [270, 265, 280], [281, EOS], [EOS], list(range(262, 276))]
        requests = [
            {"beam": beam, "alpha": 0.6, "prefix": prefix} for beam in (1, 3) for prefix in prefixes
        ]
        trees += both(look.open(alive(bundle, TEXT)), bundle, requests)
    assert len(trees) >= 30


def test_what_cannot_be_searched_is_said(look: Looker):
    page = look.open(alive(random_model(0), TEXT))
    for request, said in [
        ({"beam": 0}, "beam"),
        ({"alpha": 11}, "alpha"),
        ({"prefix": [1]}, "prefix"),
        ({"prefix": [EOS, 270]}, "prefix"),
        ({"prefix": [9999]}, "prefix"),
    ]:
        problem = page.evaluate(
            "one => transduce.trace(one).then(() => null, (error) => error.message)",
            {"text": TEXT, **request},
        )
        assert problem is not None, request
        assert said in problem
