"""Alignments: links by brute force, on weights made by hand, and of the command line."""

import random
import re

import numpy as np
import pytest
import torch
from command import refused, transduce
from pages import SOURCE, TARGET, save, translator

from transduce import TransduceError
from transduce.trace.alignment import align, links, words
from transduce.trace.trace import trace


def brute(weights: np.ndarray, columns: list[int], rows: list[int]) -> list[tuple[int, int]]:
    """Word by word, cell by cell."""
    found = []
    for target in sorted(set(rows)):
        mine = [i for i, row in enumerate(rows) if row == target]
        mass = {}
        for source in sorted(set(columns)):
            cells = [weights[i, j] for i in mine for j, c in enumerate(columns) if c == source]
            mass[source] = sum(cells) / len(mine)
        end = sum(weights[i, len(columns)] for i in mine) / len(mine)
        best = max(mass.values(), default=-1.0)
        if best >= end:
            found.append((min(s for s, m in mass.items() if m == best), target))
    return found


@pytest.mark.parametrize("seed", range(30))
def test_links_equal_those_of_brute_force(seed: int):
    rng = random.Random(seed)
    columns, rows = (
        sorted(rng.choices(range(n), k=rng.randint(1, 9))) for n in (rng.randint(1, 6), 4)
    )
    columns, rows = ([sorted(set(side)).index(unit) for unit in side] for side in (columns, rows))
    weights = np.random.default_rng(seed).dirichlet(np.ones(len(columns) + 1), len(rows))
    assert links(weights, columns, rows) == brute(weights, columns, rows)


def test_pieces_of_a_source_word_are_summed_and_eos_links_to_nothing():
    # Two pieces of 0.3 are more than one of 0.35; one word has most on EOS.
    weights = np.array([[0.3, 0.3, 0.35, 0.05], [0.1, 0.1, 0.2, 0.6]])
    assert links(weights, [0, 0, 1], [0, 1]) == [(0, 0)]
    assert links(weights, [0, 1, 2], [0, 1]) == [(2, 0)]


def test_pieces_of_a_target_word_are_averaged():
    weights = np.array([[0.9, 0.1, 0.0], [0.2, 0.8, 0.0], [0.3, 0.7, 0.0]])
    assert links(weights, [0, 1], [0, 0, 0]) == [(1, 0)]
    assert links(weights, [0, 1], [0, 0, 1]) == [(0, 0), (1, 1)]


def test_equal_weights_link_to_the_first():
    assert links(np.array([[0.25, 0.25, 0.25, 0.25]]), [0, 1, 2], [0]) == [(0, 0)]


@pytest.mark.parametrize(
    ("side", "wanted"),
    [
        ("▁The ▁an imal ▁ran .", [0, 1, 1, 2, 2]),
        ("▁ a ▁▁ ▁b", [0, 0, 1, 1]),
        ("a ▁b", [0, 1]),
        ("▁a ▁", [0, 0]),
        ("", []),
        ("▁L ' animal ▁a", [0, 0, 0, 1]),
    ],
)
def test_words_are_what_stands_between_spaces(side: str, wanted: list[int]):
    pieces = side.split(" ") if side else []
    assert words(pieces) == wanted
    text = "".join(pieces).replace("▁", " ").split()
    assert max(wanted, default=-1) + 1 == len(text)


def made(weights: torch.Tensor):
    """A trace of one sentence whose last cross-attention is made by hand."""
    found = trace(translator(), SOURCE, TARGET)
    name = "decoder.1.cross_attention.weights"
    assert found.tensors[name].shape == weights.shape
    return type(found)(**{**vars(found), "tensors": {**found.tensors, name: weights}})


def test_it_is_the_position_that_predicts_a_word_that_links_it():
    found = trace(translator(), SOURCE, TARGET)
    t, s = len(found.labels), len(found.source)
    assert (t, s) == (found.tensors["decoder.1.cross_attention.weights"].shape[1:])
    weights = torch.zeros(4, t, s)
    for i in range(t):
        weights[:, i, min(i, s - 2)] = 1.0  # the row that predicts label i reads source piece i
    one = align(made(weights), units="pieces")
    assert one.links == [(min(i, s - 2), i) for i in range(t - 1)]
    assert one.units == t - 1
    assert one.end == 0.0


def test_a_head_is_not_the_mean_and_sinks_are_counted():
    found = trace(translator(), SOURCE, TARGET)
    t, s = len(found.labels), len(found.source)
    weights = torch.zeros(4, t, s)
    weights[:3, :, s - 1] = 1.0  # three heads look at EOS
    weights[3, :, s - 2] = 1.0  # one at the full stop before it
    pieces = translator().bundles[0].source_tokenizer.pieces(found.source)
    assert pieces[s - 2] == "."
    mean = align(made(weights))
    assert mean.links == []
    assert mean.end == 0.75
    assert mean.punctuation == 0.25
    assert len(TARGET.split()) == mean.units
    alone = align(made(weights), head=3)
    assert alone.links == [(len(SOURCE.split()) - 1, k) for k in range(mean.units)]
    assert (alone.end, alone.punctuation) == (0.0, 1.0)


def test_a_blank_text_has_no_links_and_what_is_not_there_is_refused():
    assert align(trace(translator(), "")).links == []
    with pytest.raises(TransduceError, match="did you mean"):
        align(trace(translator(), SOURCE), "decoder.1.crossattention")
    with pytest.raises(TransduceError, match="no head 4"):
        align(trace(translator(), SOURCE), head=4)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save(tmp_path_factory.mktemp("alignments") / "small")


def test_the_verb_prints_a_line_a_sentence_and_nothing_else(model):
    texts = [SOURCE, "", "It was too wide."]
    found = transduce("trace", model, *texts, "--alignments", "--threads", "1")
    assert found.status == 0, found.errors
    assert len(found.lines) == 3
    assert found.lines[1] == ""
    for text, line in zip(texts, found.lines, strict=True):
        one = trace(translator(), text)
        assert line == " ".join(f"{i}-{j}" for i, j in align(one).links)
        for i, j in re.findall(r"(\d+)-(\d+)", line):
            assert int(i) < len(text.split())
            assert int(j) < len(one.target.split())
    assert "decoder.1.cross_attention, mean of heads" in found.errors
    assert "on EOS" in found.errors
    assert len(found.errors.splitlines()) == 1


def test_the_verb_takes_lines_a_block_a_head_and_pieces(model):
    options = ["--block", "decoder.0.cross_attention", "--head", "2", "--units", "pieces"]
    lines = f"{SOURCE}\n\nIt was too wide.\n".encode()
    found = transduce("trace", model, "-", "--alignments", *options, text=lines)
    assert found.status == 0, found.errors
    wanted = [
        align(trace(translator(), text), "decoder.0.cross_attention", 2, units="pieces").links
        for text in (SOURCE, "", "It was too wide.")
    ]
    assert found.lines == [" ".join(f"{i}-{j}" for i, j in one) for one in wanted]
    assert "decoder.0.cross_attention, head 2" in found.errors
    assert "target pieces" in found.errors


def test_what_it_refuses_is_one_line(model, tmp_path):
    def told(*words: str) -> str:
        return refused("trace", model, "a", *words)

    assert "only a cross-attention" in told("--alignments", "--block", "encoder.0.self_attention")
    assert "did you mean" in told("--alignments", "--block", "decoder.9.cross_attention")
    assert "its heads are 0 to 3" in told("--alignments", "--head", "4")
    assert "are for --alignments" in told("--units", "words")
    assert "are for --alignments" in told("--head", "0")
    assert "links alone" in told("--alignments", "--json", str(tmp_path / "x"))
    assert "no line" in refused("trace", model, "-")
