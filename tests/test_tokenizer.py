"""Text survives the way to ids and back; nothing that a user writes is a command."""

import io
import logging
import unicodedata

import pytest
import sentencepiece
from hypothesis import example, given
from hypothesis import strategies as st

from transduce.config import validate
from transduce.errors import DataError, SettingsError, TokenizerError
from transduce.text.tokenizer import (
    BOS,
    EOS,
    PAD,
    UNK,
    Tokenizer,
    TokenizerConfig,
    normalize,
    normalize_lines,
    train_tokenizer,
)

RESERVED = ["</s>", "<s>", "<pad>", "<unk>", "<0x41>", "<0x0A>", "<mask>", "\u2047", "\u2585"]
ODD = [" ", "  ", "\t", "\u00a0", "\u3000", "\u200b", "\u200c", "\u200d", "\ufe0f", "\ufeff", "\0"]
ODD += [
    "\n",
    "\r",
    "\v",
    "\f",
    "\x1c",
    "\x1f",
    "\x85",
    "\u2028",
    "\u2029",
    "\u2581",
    "\ud800",
    "\udc00",
]
SENTENCES = [
    f"the {a} {b} sees a {c} ."
    for a in ("old", "red")
    for b in ["cat", "dog", "bird"]
    for c in ["ox", "fox"]
]
TEXT = st.lists(
    st.one_of(st.sampled_from(RESERVED + ODD + SENTENCES), st.text(max_size=5), st.characters())
).map("".join)


@pytest.fixture(scope="module", params=["bpe", "unigram"])
def tokenizer(request):
    # The odd strings stand in the training text too, where they might have become pieces.
    corpus = [*SENTENCES, *(f"a{r}b {r} {r}{r}" for r in RESERVED + ODD for _ in range(20))]
    return train_tokenizer(corpus, TokenizerConfig(kind=request.param), vocab_size=400)


@given(TEXT)
def test_the_normal_form_is_idempotent(text):
    assert normalize(normalize(text)) == normalize(text)


LINES = st.lists(st.text(st.sampled_from("ae\u0301\u0323\u1100\u1161\t \r\x85\u2028\u2581\ufeff")))


@given(LINES)
def test_lines_are_normalised_one_by_one_or_all_at_once(lines):
    # What may compose with what went before must not do so over the end of a line, or a tab.
    normal = [normalize(line) for line in lines]
    assert normalize_lines("\n".join(lines)) == "\n".join(normal)
    assert normalize_lines("\t".join(lines)) == "\t".join(normal)


ANY = st.text(st.characters(categories=None), max_size=30)  # half surrogate pairs too


@given(st.one_of(TEXT, ANY))
@example("\u2028\u0301e\u0301\u2581\u0323\u0301")
@example("a\u200cb\u200dc\u2764\ufe0f\u200b\u00ad\u2060 \u00a0\u3000\t")
@example("\u1100\u1161\u11a8\u0958\u2126\U0002f800")
def test_the_normal_form_is_the_one_composed_text_that_means_the_same(text):
    ends = {"\n", "\v", "\f", "\r", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029"}
    as_told = "".join(
        " " if c in ends | {"\u2581"} else "\ufffd" if "\ud800" <= c <= "\udfff" else c
        for c in text
    )
    # Canonical composition by what defines it: equivalent, and composed.
    assert unicodedata.normalize("NFD", normalize(text)) == unicodedata.normalize("NFD", as_told)
    assert unicodedata.is_normalized("NFC", normalize(text))
    assert len(normalize(text).splitlines()) <= 1


def test_every_character_of_unicode_survives(tokenizer):
    everything = [chr(code) for code in range(0x110000)]
    texts = ["x".join(everything[i : i + 256]) for i in range(0, len(everything), 256)]
    for text, ids in zip(texts, tokenizer.encode_all(texts, threads=1), strict=True):
        assert min(ids) > UNK
        assert tokenizer.decode(ids) == normalize(text)


@given(TEXT)
@example("\u2581 \u2581")
@example(" x ")
@example("<0x41><0x0A></s>")
def test_decoding_gives_the_normal_form_back(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text)) == normalize(text)


@given(TEXT)
def test_text_never_becomes_a_reserved_id(tokenizer, text):
    assert not {PAD, BOS, EOS, UNK} & set(tokenizer.encode(text))


@pytest.mark.parametrize("text", RESERVED)
def test_what_spells_a_reserved_piece_is_ordinary_text(tokenizer, text):
    for framed in (text, f" {text}", f"say{text}", f"{text}{text} cat"):
        assert min(tokenizer.encode(framed)) > UNK
        assert tokenizer.decode(tokenizer.encode(framed)) == framed
    if text.startswith("<"):
        assert text not in tokenizer.pieces(range(4 + 256, tokenizer.size))


def test_the_normal_form_keeps_what_carries_meaning():
    for text in (
        "a\u200cb",
        "a\u200db",
        "\u2764\ufe0f",
        "a  b",
        " a ",
        "\ta\u00a0b\u3000",
        "\ufeffa",
        "ﬁ",
        "\x1f",
    ):
        assert normalize(text) == text
    assert normalize("cafe\u0301") == "caf\u00e9"
    assert normalize("a\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029\u2581b") == "a" + " " * 11 + "b"
    assert normalize("\ud83d") == "\ufffd"


def test_no_text_has_no_ids(tokenizer):
    assert tokenizer.encode("") == []
    assert tokenizer.decode([]) == ""
    assert tokenizer.encode_all([], threads=2) == []


def test_many_texts_are_encoded_like_each_alone(tokenizer):
    texts = [*SENTENCES, "", *RESERVED, *ODD]
    alone = [tokenizer.encode(text) for text in texts]
    assert tokenizer.encode_all(texts, threads=1) == tokenizer.encode_all(texts, threads=3) == alone


def test_reserved_ids_leave_no_trace_in_the_text(tokenizer):
    ids = tokenizer.encode("the cat")
    assert tokenizer.decode([BOS, *ids[:1], UNK, *ids[1:], EOS, PAD, PAD]) == "the cat"


def test_what_a_model_emits_has_the_normal_form(tokenizer):
    pieces = tokenizer.pieces(range(tokenizer.size))
    newline, bad, e, accent = (pieces.index(f"<0x{byte}>") for byte in ("0A", "FF", "65", "CC"))
    assert tokenizer.decode([newline, newline]) == "  "
    assert tokenizer.decode([bad]) == "\ufffd"
    assert tokenizer.decode([e, accent, pieces.index("<0x81>")]) == "\u00e9"
    block = [pieces.index(f"<0x{byte}>") for byte in ("E2", "96", "81")]
    assert tokenizer.decode([e, *block, e]) == "e e"


def test_pieces_are_shown_one_for_each_id(tokenizer):
    assert tokenizer.pieces([PAD, BOS, EOS, UNK]) == ["<pad>", "<s>", "</s>", "<unk>"]
    ids = tokenizer.encode("the cat \u0416")
    assert len(tokenizer.pieces(ids)) == len(ids)
    assert "".join(tokenizer.pieces(ids)) == "\u2581the\u2581cat\u2581<0xD0><0x96>"


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_the_same_text_gives_the_same_bytes(kind):
    config = TokenizerConfig(kind=kind)
    first, second = (train_tokenizer(iter(SENTENCES), config, vocab_size=300) for _ in range(2))
    assert first.model == second.model


def test_a_saved_model_is_the_same_model(tokenizer, tmp_path):
    tokenizer.save(tmp_path / "tokenizer.model")
    assert Tokenizer.load(tmp_path / "tokenizer.model").model == tokenizer.model


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_a_vocabulary_that_the_text_cannot_fill_is_smaller_with_a_warning(kind, caplog):
    with caplog.at_level(logging.WARNING):
        tokenizer = train_tokenizer(SENTENCES[:2], TokenizerConfig(kind=kind), vocab_size=8000)
    assert 260 < tokenizer.size < 400
    assert [record.getMessage() for record in caplog.records] == [
        f"the text cannot fill a vocabulary of 8000; it has {tokenizer.size} entries"
    ]


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_the_smallest_possible_vocabulary_is_named_and_works(kind, caplog):
    alphabet = [chr(0x4E00 + i) for i in range(300)]
    config = TokenizerConfig(kind=kind, character_coverage=1.0)
    smallest = 4 + 256 + 300 + 1  # and the mark of a word's beginning
    for size in (1, 100, smallest - 1):
        with pytest.raises(TokenizerError, match=f"vocab_size must be at least {smallest}"):
            train_tokenizer(alphabet, config, vocab_size=size)
    assert train_tokenizer(alphabet, config, vocab_size=smallest).size == smallest
    assert not caplog.records


@pytest.mark.parametrize("texts", [[], [""], [" ", "\t", "\n"], ["\u2581"]])
def test_no_text_to_learn_from_is_said(texts):
    with pytest.raises(TokenizerError, match="there is no text"):
        train_tokenizer(texts, TokenizerConfig(), vocab_size=300)


def test_what_goes_wrong_with_the_text_is_not_hidden():
    def texts():
        yield "fine"
        raise DataError("text, line 2: not UTF-8")

    with pytest.raises(DataError, match="line 2"):
        train_tokenizer(texts(), TokenizerConfig(), vocab_size=300)


def test_no_line_is_left_out_of_training():
    lines = ["wax " * 2000, "\u2585 hub" * 50, "vim\0" * 50, "a\nb fez" * 50]
    tokenizer = train_tokenizer(lines, TokenizerConfig(), vocab_size=290)
    for word in ("wax", "hub", "vim", "fez"):
        assert all(len(piece) < 6 for piece in tokenizer.pieces(tokenizer.encode(word)))


def foreign_model(**options):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES),
        model_writer=model,
        vocab_size=30,
        minloglevel=4,
        hard_vocab_limit=False,
        **options,
    )
    return model.getvalue()


@pytest.mark.parametrize("model", [b"", b"no model", b"\x80\x04\x95pickle"])
def test_other_bytes_are_no_model(model, tmp_path):
    with pytest.raises(TokenizerError, match="not a SentencePiece model"):
        Tokenizer(model)
    path = tmp_path / "tokenizer.model"
    path.write_bytes(model)
    with pytest.raises(TokenizerError, match=r"tokenizer\.model: .*not a SentencePiece model"):
        Tokenizer.load(path)


def test_a_model_cut_short_is_refused(tokenizer):
    for length in range(0, len(tokenizer.model), 97):
        with pytest.raises(TokenizerError):
            Tokenizer(tokenizer.model[:length])


def test_a_model_with_other_reserved_ids_is_refused():
    with pytest.raises(TokenizerError, match="as ids 0, 1, 2, 3; it has -1, 1, 2, 0"):
        Tokenizer(foreign_model())


def test_a_missing_model_is_named(tmp_path):
    with pytest.raises(TokenizerError, match=r"none\.model: cannot be read"):
        Tokenizer.load(tmp_path / "none.model")


@pytest.mark.parametrize(
    "setting",
    [
        {"vocab_size": 0},
        {"vocab_size": 2_000_000},
        {"character_coverage": 0.9},
        {"character_coverage": 1.1},
    ],
)
def test_settings_that_sentencepiece_cannot_take_are_refused(setting):
    with pytest.raises(SettingsError, match=next(iter(setting))):
        validate(TokenizerConfig, setting)
