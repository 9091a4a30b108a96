"""Whether a sentence's translation depends on its neighbours: a file, batched in many ways.

    python benchmarks/same_translation.py MODEL FILE [--lines 1000]

Translates the lines one at a time, in batches of 7 and 64 sentences, by tokens (the default), and
shuffled, with beam 1 and 4, in float32; compares texts and scores with one at a time.
"""

import argparse
import random
from itertools import islice
from pathlib import Path

from transduce import Translation, Translator
from transduce.text.corpus import read_lines

_CLOSE = 1e-4
"""Two hypotheses whose scores are nearer than this may change places."""


def main() -> None:
    """Print a row for each way of batching, and every line that differs."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("file", type=Path)
    parser.add_argument("--lines", type=int, default=1000)
    given = parser.parse_args()
    translator = Translator.load(given.model)
    texts = list(islice(read_lines(given.file), given.lines))
    print(f"{len(texts)} lines of {given.file.name}")
    print("| beam | batch | other text | of these within 1e-4 | largest difference of scores |")
    print("|---|---|---|---|---|")
    for beam in (1, 4):
        alone = in_batches(translator, texts, 1, beam)
        for name, found in ways(translator, texts, beam):
            print(f"| {beam} | {name} | {compared(alone, found)} |", flush=True)


def ways(
    translator: Translator, texts: list[str], beam: int
) -> list[tuple[str, list[Translation]]]:
    """The same lines, batched otherwise."""
    order = list(range(len(texts)))
    random.Random(1).shuffle(order)
    shuffled = in_batches(translator, [texts[i] for i in order], 64, beam)
    back = dict(zip(order, shuffled, strict=True))
    return [
        ("7 sentences", in_batches(translator, texts, 7, beam)),
        ("64 sentences", in_batches(translator, texts, 64, beam)),
        ("64 sentences, shuffled", [back[i] for i in range(len(texts))]),
        ("by tokens", in_batches(translator, texts, len(texts), beam)),
    ]


def in_batches(translator: Translator, texts: list[str], size: int, beam: int) -> list[Translation]:
    """Translate `size` lines at a time."""
    return [
        found
        for start in range(0, len(texts), size)
        for found in translator.translate(texts[start : start + size], beam=beam)
    ]


def compared(alone: list[Translation], found: list[Translation]) -> str:
    """Count the lines whose text is another one."""
    other = [
        i for i, pair in enumerate(zip(alone, found, strict=True)) if pair[0].text != pair[1].text
    ]
    gaps = [abs(a.score - b.score) for a, b in zip(alone, found, strict=True)]
    close = [i for i in other if gaps[i] < _CLOSE]
    for i in other:
        print(f"    line {i + 1}: {alone[i].score:.6f} {alone[i].text}")
        print(f"    line {i + 1}: {found[i].score:.6f} {found[i].text}")
    return f"{len(other)} | {len(close)} | {max(gaps):.1e}"


if __name__ == "__main__":
    main()
