"""What a demo's model does with *it*: which heads decide between French *il* and *elle*.

    python benchmarks/referent.py RUN [--pairs 200] [--seed 0]

RUN is what `make demo` leaves in ./transduce-demo. Pairs of held-out sentences (contrast.py) differ
in one adjective, which says what *it* is: "... because it was tired" or "... dark". Measured is
where the pronoun is written, after the reference up to "parce qu'"; one's right pronoun is the
other's wrong one. *Log-odds*: log p(right) - log p(wrong), in nats; *right*: the share above 0. A
head that is off mixes to zero, at all positions. Prints tables of Markdown.
"""

import argparse
from collections import Counter
from collections.abc import Iterable
from itertools import combinations
from pathlib import Path

import torch
from contrast import (
    WORDS,
    Batch,
    Head,
    Seen,
    batch_of,
    blocked,
    contrast_pairs,
    exchanged,
    find,
    log_odds,
    looks,
    of,
    right,
)
from torch import Tensor

from transduce import Tokenizer, Transformer, Translator, record
from transduce.demo.grammar import EXAMPLES
from transduce.ids import PAD
from transduce.trace.attribution import attribution
from transduce.trace.record import heads_off
from transduce.trace.steps import attentions

GUIDE = EXAMPLES[0], EXAMPLES[1]
"""The animal that was tired, the street that was too wide."""

FIRST = "decoder.0.self_attention"
"""The block by which the decoder knows where in the text it is."""


def main() -> None:
    """Measure all, and print tables of Markdown."""
    parser = argparse.ArgumentParser(description="Which heads decide between il and elle.")
    parser.add_argument("run", type=Path)
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    report(Translator.load(given.run), given.pairs, given.seed)


def report(translator: Translator, count: int, seed: int) -> None:
    """Print all tables."""
    model, *tokenizers, _ = translator.bundles[0]
    pairs = contrast_pairs(count, seed, tokenizers[0])
    batch, guide = batch_of(pairs, *tokenizers), batch_of([GUIDE], *tokenizers)
    with record(model, "*.weights") as seen:
        log_odds(model, batch)
    with record(model, "*.weights") as shown:
        log_odds(model, guide)
    found = find(model, batch, seen)
    nouns = len({sentence.key for sentence, _ in pairs})
    print(f"{len(pairs)} pairs, {nouns} pairs of nouns, seed {seed}; by measure:", end=" ")
    print(*(f"{key} {name([head])}" for key, head in found.items()), sep="; ", end=".\n\n")
    ablations(model, batch, guide, found)
    memory(model, batch)
    measures(model, batch)
    attention(model, batch, seen)
    keys(model, guide, shown, found, tokenizers[0])
    translations(translator, model, found)
    smallest_sets(model, guide)


def name(heads: Iterable[Head]) -> str:
    """Return what tables call heads."""
    return ", ".join(f"{block} {head}" for block, head in sorted(heads))


def table(head: list[str], rows: Iterable[Iterable[object]]) -> None:
    """Print Markdown; numbers with two decimals."""
    print(f"| {' | '.join(head)} |\n|{'---|' * len(head)}")
    for row in rows:  # + 0.0: nothing is -0.00
        cells = [f"{round(x, 2) + 0.0:.2f}" if isinstance(x, float) else str(x) for x in row]
        print(f"| {' | '.join(cells)} |")
    print(flush=True)


def shares(odds: Tensor) -> list[str]:
    """Format `right` so that one of 400 shows."""
    return [f"{share:.3f}" for share in right(odds)]


def ablations(model: Transformer, batch: Batch, guide: Batch, found: dict[str, Head]) -> None:
    """Tell what is left without each head, block and pattern, and without the word *it*."""
    every, (decisive, *others, _) = of(model, ""), found.values()
    kept = {decisive, *others, *of(model, FIRST)}
    off: dict[str, Iterable[Head]] = {"nothing": []} | {name([head]): [head] for head in every}
    for part in (*attentions(model), "encoder_self", "decoder_self", "cross"):
        off[f"all of {part}"] = of(model, part)
    off["the others of the decisive head's block"] = {*of(model, decisive[0])} - {decisive}
    off[f"all but decisive, pointing, copying, {FIRST}"] = {*every} - kept
    rows = {what: [log_odds(model, each, heads) for each in (batch, guide)]
            for what, heads in off.items()}  # fmt: skip
    hidden = [blocked(model, each, each.words["it"]) for each in (batch, guide)]
    table(
        ["off", "right", "*it* = noun 1", "noun 2", "log-odds", "tired", "wide"],
        ([what, *shares(odds), odds.mean().item(), *two.tolist()]
         for what, (odds, two) in (rows | {"*it* as a key, wherever": hidden}).items()),
    )  # fmt: skip


def memory(model: Transformer, batch: Batch) -> None:
    """Tell what a word's memory carries: it is taken from the pair's other sentence."""
    own, words = log_odds(model, batch), batch.words
    whole = own + own.roll(len(own) // 2)  # to where the other sentence stands, seen from here
    rows = words | {"all but the adjective": (batch.source != PAD) & ~words["adjective"]}
    found = {word: exchanged(model, batch, at) for word, at in rows.items()}
    table(
        ["memory exchanged", "share of the way to the other", "pronouns flipped"],
        ([word, ((own - odds).mean() / whole.mean()).item(), shares(-odds)[0]]
         for word, odds in found.items()),
    )  # fmt: skip


def measures(model: Transformer, batch: Batch) -> None:
    """Tell what hiding each word does, and which has most at the pronoun, by three measures."""
    block = f"decoder.{len(model.decoder) - 1}.cross_attention"
    most = {way: Counter[str]() for way in ("occlusion", "gradient", "weight")}
    for i, pronoun in enumerate(batch.right.tolist()):
        source, prefix = (ids[ids != PAD].tolist() for ids in (batch.source[i], batch.prefix[i]))
        with torch.no_grad(), record(model, f"{block}.weights") as tape:
            model(torch.tensor([source]), torch.tensor([prefix]))
        found = attribution(model, source, [*prefix[1:], pronoun])
        rows = {way: sides.source[-1].abs() for way, sides in found._asdict().items()}
        rows["weight"] = tape[f"{block}.weights"][0, :, -1].mean(0)
        for way, row in rows.items():
            place = int(row.argmax())
            words = [word for word in WORDS if batch.words[word][i, place]]
            most[way]["".join(words) or "another"] += 1
    hidden: dict[str, list[object]] = {"another": ["–", "–"]}
    for word in WORDS:
        odds = blocked(model, batch, batch.words[word])
        hidden[word] = [shares(odds)[0], odds.mean().item()]
    table(
        ["word", "hidden: right", "log-odds", "most by occlusion", "by gradient x input",
         f"by weight in {block}, mean of heads"],
        ([word, *hidden[word], *(counts[word] for counts in most.values())]
         for word in [*WORDS, "another"]),
    )  # fmt: skip


def attention(model: Transformer, batch: Batch, seen: Seen) -> None:
    """Tell what heads attend to: of cross-attention writing the pronoun, of the encoder at *it*."""
    for what, query, pattern in (("pronoun", batch.deciding, "cross"),
                                 ("*it*", batch.words["it"], "encoder")):  # fmt: skip
        rows = []
        for head in of(model, pattern):
            both = (looks(seen, head, query, batch.words[word]) for word in WORDS)
            rows.append([name([head]), *(f"{100 * a:.0f}/{100 * b:.0f}" for a, b in both)])
        table([f"{what}, % to", *WORDS], rows)


def keys(
    model: Transformer, guide: Batch, shown: Seen, found: dict[str, Head], tokenizer: Tokenizer
) -> None:
    """Tell what the found heads attend to most in the guide's two sentences, and *it* to nouns."""
    words, rows = guide.words, []
    with heads_off(model, [found["decisive"]]), record(model, "*.weights") as without:
        log_odds(model, guide)
    for key, seen, query in (
        ("decisive", shown, guide.deciding),
        ("pointing", shown, guide.deciding),
        ("pointing, decisive off", without, guide.deciding),
        ("copying", shown, words["The"]),
        ("bright", shown, words["it"]),
    ):
        (block, head), cells = found[key.split(",")[0]], []
        for row, pieces in enumerate(map(tokenizer.pieces, guide.source.tolist())):
            given = seen[f"{block}.weights"][row, head][query[row]].mean(0)
            best = given.argsort(descending=True)[:3].tolist()
            cells.append(", ".join(f"{pieces[i]} {given[i]:.2f}" for i in best))
        rows.append([key, *cells])
    table(["most weight", "tired", "wide"], rows)
    for noun in ("noun 1", "noun 2"):
        links = {h: looks(shown, h, words["it"], words[noun]) for h in of(model, "encoder")}
        most = max(links, key=lambda head: max(links[head]))
        print(f"From *it* to {noun} at most {max(links[most]):.2f}: {name([most])}.")
    print()


def translations(translator: Translator, model: Transformer, found: dict[str, Head]) -> None:
    """Tell what becomes of the guide's two sentences, with the search of `transduce translate`."""
    texts = [sentence.source for sentence in GUIDE]
    off = {"nothing": []} | {key: [head] for key, head in found.items()}
    rows = []
    for what, heads in (off | {"encoder_self": of(model, "encoder")}).items():
        with heads_off(model, heads):
            rows.append([what, *(each.text for each in translator.translate(texts))])
    bare = translator.translate([text.replace(" it ", " ") for text in texts])
    rows.append(["the word *it*", *(each.text for each in bare)])
    table(["off", "tired", "wide"], rows)


def smallest_sets(model: Transformer, guide: Batch) -> None:
    """Try all sets of up to three heads: which flip a pronoun, and hold no smaller such set."""
    flips: dict[str, list[set[Head]]] = {"tired": [], "wide": []}
    rows = []
    for size in (1, 2, 3):
        sets = [*map(set, combinations(of(model, ""), size))]
        wrong = [(log_odds(model, guide, heads) < 0).tolist() for heads in sets]
        for place, (what, smaller) in enumerate(flips.items()):
            all_ = [heads for heads, each in zip(sets, wrong, strict=True) if each[place]]
            new = [heads for heads in all_ if not any(one <= heads for one in smaller)]
            smaller += new
            rows.append([what, size, len(sets), len(all_), "; ".join(map(name, new[:5])) or "none"])
    table(["", "heads", "sets", "that flip it", "of these with no smaller one inside"], rows)


if __name__ == "__main__":
    main()
