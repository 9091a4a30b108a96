"""Do alignments read off attention find the nouns that the demo's grammar has put into a pair?

    python benchmarks/alignments.py RUN [--sentences 1000]

RUN is what `make demo` leaves in ./transduce-demo. Counted are nouns of the lexicon that are in a
test sentence once and, as one of their translations, once in its reference. *right*: the French
word is linked to the English one; *none*: EOS has its weight. Prints a table of Markdown.
"""

import argparse
import re
from collections import Counter
from pathlib import Path

import torch

from transduce import Translator, record
from transduce.demo import grammar, lexicon
from transduce.ids import BOS, EOS
from transduce.trace.alignment import links, words
from transduce.trace.document import pieces

TABLES = ("ANIMALS", "PEOPLE", "PLACES", "THINGS", "FRUITS", "DISHES")


def nouns() -> dict[str, set[str]]:
    """Every English noun of the lexicon, with its French ones."""
    found: dict[str, set[str]] = {}
    for name in TABLES:
        for noun in getattr(lexicon, name).values():
            found.setdefault(noun.en, set()).add(noun.fr)
            found.setdefault(noun.en_plural, set()).add(noun.fr_plural)
    return found


def bare(word: str) -> str:
    """A word without what is written with it: L'animal, street."""
    return re.sub(r"^(l|d|qu|j|n|s|c|m|t)'", "", word.strip(".,?!").lower())


def known(source: str, target: str, french: dict[str, set[str]]) -> list[tuple[int, int]]:
    """The links that there have to be, by the number of a word."""
    ours, theirs = ([bare(word) for word in side.split()] for side in (source, target))
    return [
        (i, j)
        for i, word in enumerate(ours)
        for j, other in enumerate(theirs)
        if other in french.get(word, ()) and ours.count(word) == theirs.count(other) == 1
    ]


def main() -> None:
    """Print, for each layer, head and position, how many links are right."""
    parser = argparse.ArgumentParser()
    parser.add_argument("run", type=Path)
    parser.add_argument("--sentences", type=int, default=1_000)
    options = parser.parse_args()
    (bundle,) = Translator.load(options.run).bundles
    right, none, total, french = Counter(), Counter(), 0, nouns()
    for pair in grammar.corpus(1, test=options.sentences).test:
        wanted = known(pair.source, pair.target, french)
        total += len(wanted)
        source = [*bundle.source_tokenizer.encode(pair.source), EOS]
        target = bundle.target_tokenizer.encode(pair.target)
        with torch.inference_mode(), record(bundle.model, "*cross_attention.weights") as tape:
            bundle.model(torch.tensor([source]), torch.tensor([[BOS, *target]]))
        columns = words(pieces(bundle.source_tokenizer, source[:-1]))
        rows = words(pieces(bundle.target_tokenizer, target))
        for name, recorded in tape.items():
            each = recorded[0].double().numpy()
            heads = {"mean": each.mean(axis=0)} | {str(k): one for k, one in enumerate(each)}
            for head, weights in heads.items():
                for position, mine in (("predicts", weights[:-1]), ("reads", weights[1:])):
                    found = {j: i for i, j in links(mine, columns, rows)}
                    key = (name.removesuffix(".weights"), head, position)
                    right[key] += sum(found.get(j) == i for i, j in wanted)
                    none[key] += sum(j not in found for _, j in wanted)
    print(f"{total:,} pairs of nouns in {options.sentences:,} test sentences\n")
    print("| block | head | position that | right | none |\n|---|---|---|--:|--:|")
    for key, count in sorted(right.items(), key=lambda item: (-item[1], item[0])):
        print(f"| {' | '.join(key)} | {count / total:.1%} | {none[key] / total:.1%} |")


if __name__ == "__main__":
    main()
