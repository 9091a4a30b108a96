"""The tokenizer of the page, in a browser: what SentencePiece says of the same texts and ids."""

import gzip
import random
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from alive import alive, random_model
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from looker import Looker

from transduce.demo import grammar
from transduce.ids import UNK
from transduce.text.tokenizer import Tokenizer, TokenizerConfig, train_tokenizer
from transduce.trace.weights import vocabulary

TATOEBA = Path(__file__).parents[2] / "shared" / "data" / "tatoeba.en-fr" / "train.tsv.gz"
KINDS = [("bpe", 400), ("bpe", 2000), ("unigram", 400), ("unigram", 1200)]
# Two halves that meet are a character in JavaScript and two in Python; nobody can type them.
MEETING = re.compile("[\ud800-\udbff](?=[\udc00-\udfff])")
HARD = st.sampled_from(
    [
        "\u0301",
        "\u0323\u0307",
        "e\u0301",
        "\u1100\u1161\u11a8",
        "가",
        "漢字",
        "😀",
        "👩\u200d👧",
        "שלום",
        "مرحبا",
        "\u200f",
        "\ufeff",
        "\x00",
        "\x1c",
        "\x85",
        "\u2028",
        "\r\n",
        "\t",
        " ",
        "  ",
        "\u2581",
        "ﬁ",
        "ß",
        "\ud800",
        "\udfff",
        "\ufffd",
        "\ufffe",
        "\U0010ffff",
        "</s>",
        "<unk>",
        "<0x41>",
        "the ",
        "chat",
    ]
)
TEXTS = st.lists(HARD | st.text(st.characters(codec=None), max_size=3), max_size=12).map("".join)


@cache
def lines() -> list[str]:
    """Real sentences, or generated ones where there are none."""
    if TATOEBA.exists():
        with gzip.open(TATOEBA, "rt", encoding="utf-8") as file:
            columns = [line.rstrip("\n").split("\t")[:2] for line in file]
        return random.Random(0).sample([text for pair in columns for text in pair], 6000)
    return [text for one in grammar.corpus(0, train=3000).train for text in one[:2]]


@cache
def strange() -> list[str]:
    """What nobody writes, as hypothesis makes it."""
    found: list[str] = ["", " ", "   ", "\u2581", "\u2581\u2581a", "a" * 300, "\n"]

    @settings(max_examples=1500, phases=[Phase.generate], database=None)
    @given(TEXTS)
    def collect(text: str) -> None:
        found.append(MEETING.sub("", text))

    collect()
    return found


@cache
def trained(kind: str, size: int) -> Tokenizer:
    config = TokenizerConfig.model_validate({"kind": kind})
    return train_tokenizer(lines()[:3000], config, vocab_size=size)


@cache
def with_vocabulary(kind: str, size: int) -> Any:
    """A document of some model, and this vocabulary."""
    document = alive(random_model(0), "the cat")
    document["weights"]["tokenizers"] = {
        "source": vocabulary(trained(kind, size)),
        "target": None,
    }
    return document


def ask(page: Any, what: str, values: list[Any]) -> list[Any]:
    """Call a function of the page's handle on each of many values; texts go as code points."""
    plain = [[ord(each) for each in x] if isinstance(x, str) else x for x in values]
    made = "x.map((c) => String.fromCodePoint(c)).join('')" if what == "encode" else "x"
    return page.evaluate(f"all => Promise.all(all.map((x) => transduce.{what}({made})))", plain)


@pytest.mark.parametrize(("kind", "size"), KINDS)
def test_it_cuts_text_as_sentencepiece_does(look: Looker, kind: str, size: int):
    tokenizer = trained(kind, size)
    texts = [*lines(), *strange()]
    found = ask(look.open(with_vocabulary(kind, size)), "encode", texts)
    for text, ids in zip(texts, found, strict=True):
        assert ids == tokenizer.encode(text), repr(text)
        assert all(each > UNK for each in ids)
    assert len(texts) > 5000


@pytest.mark.parametrize(("kind", "size"), KINDS)
def test_it_puts_ids_together_as_sentencepiece_does(look: Looker, kind: str, size: int):
    tokenizer, draw = trained(kind, size), random.Random(1)
    first = tokenizer.pieces(range(tokenizer.size)).index("<0x00>")
    broken = [
        first + byte for byte in (0xE2, 0x96, 0x81, 0xF0, 0x9F, 0x98, 0x80, 0xC3, 0xED, 0xA0, 0xCC)
    ]

    def piece() -> int:
        kinds = (draw.randrange(tokenizer.size), first + draw.randrange(256), draw.choice(broken))
        return draw.choice(kinds)

    many = [[piece() for _ in range(draw.randrange(14))] for _ in range(4000)]
    many += [tokenizer.encode(text) for text in strange()]
    found = ask(look.open(with_vocabulary(kind, size)), "decode", many)
    for ids, text in zip(many, found, strict=True):
        assert text == tokenizer.decode(ids), (ids, tokenizer.pieces(ids))
    assert any("\ufffd" in text for text in found)


def test_what_came_in_comes_out_and_a_piece_is_shown_as_python_shows_it(look: Looker):
    document = with_vocabulary("bpe", 400)
    page = look.open(document)
    for text in ("The cat sat.", "Zoë 😀 e\u0301", "</s> <0x41>"):
        ids = ask(page, "encode", [text])[0]
        assert ask(page, "decode", [ids]) == [trained("bpe", 400).decode(ids)]
    assert ask(page, "decode", [[0, 1, 2, 3]]) == [""]
