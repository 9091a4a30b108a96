"""Sentences of the demo's grammar in pairs that differ in what *it* is, and a model's answers.

The pieces of referent.py: pairs, a batch of them, and how surely a model writes the right pronoun,
intact or with heads off, words hidden, memory exchanged; and the heads to look at.
"""

import random
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn

from transduce import Tokenizer, Transformer
from transduce.data.batching import pad
from transduce.demo.draw import Sentence, sentence
from transduce.demo.grammar import split_of
from transduce.demo.lexicon import ADJECTIVES, ANIMALS, NOUNS, VERBS
from transduce.demo.phrases import it, noun_phrase, reason
from transduce.demo.situations import CAUSES, REASONS, UNGRADED
from transduce.ids import BOS, EOS
from transduce.trace.record import heads_off
from transduce.trace.steps import attentions

WORDS = ["The", "noun 1", "the", "noun 2", "because", "it", "was", "adjective", "full stop", "EOS"]
"""Noun 1 is who did (not) do it, noun 2 to what; each has its article before it."""

Pair = tuple[Sentence, Sentence]
Head = tuple[str, int]
Seen = Mapping[str, Tensor]


class Batch(NamedTuple):
    """Rows: the first sentence of each pair (*it* is noun 1), then the second of each (noun 2)."""

    source: Tensor  # [rows, s] with EOS, then PAD
    prefix: Tensor  # [rows, t] with BOS, then PAD
    deciding: Tensor  # [rows, t] True at the position that writes the pronoun
    right: Tensor  # [rows] id of the pronoun
    words: dict[str, Tensor]  # [rows, s] True at a word's pieces


def contrast_pairs(count: int, seed: int, tokenizer: Tokenizer) -> list[Pair]:
    """Draw pairs of equally many pieces; two nouns differ in gender and never meet in training."""
    draw, found = random.Random(seed), dict[tuple[object, ...], Pair]()
    for _ in range(200_000):
        if len(found) == count:
            break
        animal = draw.choice([*ANIMALS])
        verb, negated, of_object, target = draw.choice(CAUSES)
        who, what = noun_phrase(NOUNS[animal], "the"), noun_phrase(NOUNS[target], "the")
        if split_of(f"{animal}|{target}") != "test" or who.feminine == what.feminine:
            continue
        adjectives = draw.choice(REASONS[verb, negated][1]), of_object
        if ADJECTIVES[adjectives[0]].state:  # French says it with another verb: avoir faim
            continue
        degrees = ["", "too", "very"] if negated else ["", "very"]
        degree = draw.choice(degrees) if UNGRADED.isdisjoint(adjectives) else ""
        past = draw.random() < 0.7
        texts = [
            reason(who, it(noun), what, verb=VERBS[verb], adjective=ADJECTIVES[adjective],
                   degree=degree, past=past, negated=negated)
            for noun, adjective in zip((who, what), adjectives, strict=True)
        ]  # fmt: skip
        a, b = (sentence(text, family="because it", key=(animal, target)) for text in texts)
        if len(tokenizer.encode(a.source)) == len(tokenizer.encode(b.source)):
            found.setdefault((animal, verb, negated, target, *adjectives), (a, b))
    return list(found.values())


def places(tokenizer: Tokenizer, text: str) -> list[list[int]]:
    """Find the positions of each of WORDS in "The A did (not) B the C because it was (too) D."."""
    at: list[list[int]] = []
    for position, piece in enumerate(tokenizer.pieces(tokenizer.encode(text))):
        at += [[]] * piece.startswith("▁")
        at[-1] = [*at[-1], position]
    n, (*adjective, stop) = text.split().index("because"), at[-1]
    return [*at[:2], *at[n - 2 : n + 3], adjective, [stop], [stop + 1]]


def batch_of(pairs: list[Pair], source_side: Tokenizer, target_side: Tokenizer) -> Batch:
    """Encode pairs, the target up to its pronoun."""
    rows = [pair[reading] for reading in (0, 1) for pair in pairs]
    source = pad([[*source_side.encode(row.source), EOS] for row in rows])
    words = {word: torch.zeros_like(source, dtype=torch.bool) for word in WORDS}
    prefixes, right = [], []
    for i, row in enumerate(rows):
        for word, positions in zip(WORDS, places(source_side, row.source), strict=True):
            words[word][i, positions] = True
        before, after = row.target.split("parce qu'")
        ids, length = target_side.encode(row.target), len(target_side.encode(f"{before}parce qu'"))
        assert target_side.decode(ids[length:]) == after, row.target
        prefixes.append([BOS, *ids[:length]])
        right.append(ids[length])
    lengths = torch.tensor([[len(prefix)] for prefix in prefixes])
    prefix = pad(prefixes)
    deciding = torch.arange(1, prefix.shape[1] + 1) == lengths
    return Batch(source, prefix, deciding, torch.tensor(right), words)


@torch.inference_mode()
def log_odds(model: Transformer, batch: Batch, off: Iterable[Head] = ()) -> Tensor:
    """Return log p(right pronoun) - log p(wrong one) of each row."""
    with heads_off(model, off):
        logits = model(batch.source, batch.prefix)[batch.deciding]
    wrong = batch.right.roll(len(logits) // 2)
    return (logits.gather(1, batch.right[:, None]) - logits.gather(1, wrong[:, None]))[:, 0]


@contextmanager
def changed(modules: list[nn.Module], change: Callable[[Tensor], Tensor]) -> Generator[None]:
    """Put `change(output)` in the place of what modules compute."""
    with ExitStack() as stack:
        for module in modules:
            hook = module.register_forward_hook(lambda _, inputs, output: change(output))
            stack.callback(hook.remove)
        yield


def blocked(model: Transformer, batch: Batch, keys: Tensor) -> Tensor:
    """Return the log-odds where nothing attends to `keys`, [rows, s] of the source."""
    blocks = dict(of(model, "encoder", "cross"))
    modules = [model.get_submodule(f"{block}.scores") for block in blocks]
    with changed(modules, lambda scores: scores.masked_fill(keys[:, None, None], -torch.inf)):
        return log_odds(model, batch)


def exchanged(model: Transformer, batch: Batch, at: Tensor) -> Tensor:
    """Return the log-odds where the memory `at` [rows, s] is that of the pair's other sentence."""

    def exchange(memory: Tensor) -> Tensor:
        return torch.where(at[:, :, None], memory.roll(len(memory) // 2, 0), memory)

    with changed([model.encoder_norm], exchange):
        return log_odds(model, batch)


def of(model: Transformer, *beginnings: str) -> list[Head]:
    """List the heads of the blocks whose name or pattern begins so."""
    return [
        (block, head)
        for block, pattern in attentions(model).items()
        if block.startswith(beginnings) or pattern.startswith(beginnings)
        for head in range(model.config.heads)
    ]


def looks(seen: Seen, head: Head, queries: Tensor, keys: Tensor) -> tuple[float, float]:
    """Return what queries (mean) give to keys (sum): where *it* is noun 1, where it is noun 2.

    `queries` and `keys` are True at some positions of each row.
    """
    weights = seen[f"{head[0]}.weights"][:, head[1]]
    given = torch.einsum("rqk,rq,rk->r", weights, queries.float(), keys.float())
    first, second = (given / queries.sum(1)).view(2, -1).mean(1).tolist()
    return first, second


def right(odds: Tensor) -> list[float]:
    """Return the shares of the pronouns that are right: of all, where *it* is noun 1, noun 2."""
    ok = (odds > 0).float()
    return [ok.mean().item(), *ok.view(2, -1).mean(1).tolist()]


def find(model: Transformer, batch: Batch, seen: Seen) -> dict[str, Head]:
    """Find the heads to look at, by measure.

    Decisive: the cross-attention head without which fewest pronouns are right. Pointing: that other
    one whose weight, writing the pronoun, moves most between the nouns with their articles.
    Copying: the encoder's with most weight from noun 1's article to noun 1. Bright: from *it* to
    the adjective.
    """
    words, cross, encoder = batch.words, of(model, "cross"), of(model, "encoder")

    def left(head: Head) -> tuple[float, float]:
        odds = log_odds(model, batch, [head])
        return right(odds)[0], odds.mean().item()

    def moves(head: Head) -> float:
        phrases = words["The"] | words["noun 1"], words["the"] | words["noun 2"]
        (a, b), (c, d) = (looks(seen, head, batch.deciding, phrase) for phrase in phrases)
        return a - b + d - c

    decisive = min(cross, key=left)
    return {
        "decisive": decisive,
        "pointing": max((head for head in cross if head != decisive), key=moves),
        "copying": max(encoder, key=lambda h: looks(seen, h, words["The"], words["noun 1"])[0]),
        "bright": max(encoder, key=lambda h: looks(seen, h, words["it"], words["adjective"])[0]),
    }
