import inspect
import logging
import re

import pytest
import torch

from transduce import bundle
from transduce.bundle import Bundle
from transduce.decode.search import SearchOptions
from transduce.decode.stream import translate_stream
from transduce.decode.translator import Translation, Translator, _batches
from transduce.errors import BundleError, DataError, SettingsError
from transduce.ids import BOS, EOS
from transduce.model.config import TransformerConfig
from transduce.model.transformer import Transformer
from transduce.text.corpus import read_lines_leniently
from transduce.text.tokenizer import Tokenizer, TokenizerConfig, train_tokenizer

WORDS = "this old dog likes every quiet bird paints the tree boat horse child sees a red small cat"
TEXTS = [
    "this old dog likes every boat",
    "every quiet bird " * 3 + "paints the tree",
    ".",
    "",
    "the old child sees a dog",
    "a",
    " \t ",
    "this red cat " * 4,
    "¿?",
    "the red horse paints a boat",
    "\u2028\u2581",
    "a small child sees this cat every boat",
]


@pytest.fixture(scope="module")
def tokenizer():
    words = WORDS.split()
    texts = [" ".join(words[i % 18 :: 1 + i % 4]) for i in range(90)]
    return train_tokenizer(texts, TokenizerConfig(), vocab_size=320)


def make(tokenizer, seed, max_length=64):
    torch.manual_seed(seed)
    config = TransformerConfig(
        source_vocab_size=tokenizer.size, target_vocab_size=tokenizer.size, d_model=32, heads=2,
        d_ff=64, encoder_layers=2, decoder_layers=2, max_length=max_length, tie="none",
    )  # fmt: skip
    model = Transformer(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # so that the output depends on the source
            parameter.mul_(1.7)
        model.output.weight[4:260] = 0  # the bytes are unlikely, an end now and then likely
        model.output.weight[EOS] *= 4
    return Bundle(model, tokenizer, tokenizer, {})


@pytest.fixture(scope="module")
def loaded(tokenizer):
    return make(tokenizer, seed=13)


@pytest.fixture(scope="module")
def translator(loaded):
    return Translator(loaded)


def assert_equal(ours: list[Translation], theirs: list[Translation]):
    assert [one.text for one in ours] == [one.text for one in theirs]
    assert [one.score for one in ours] == pytest.approx([one.score for one in theirs], abs=1e-4)
    assert [
        one._replace(score=0, log_prob=0, token_log_probs=(), alternatives=()) for one in ours
    ] == [one._replace(score=0, log_prob=0, token_log_probs=(), alternatives=()) for one in theirs]


@pytest.mark.parametrize("beam", [1, 4])
def test_a_translation_depends_on_its_source_alone(translator, beam):
    everything = translator.translate(TEXTS, beam=beam, max_length=20)
    assert len({one.text for one in everything}) > 6  # or nothing would be compared
    alone = [translator.translate(text, beam=beam, max_length=20) for text in TEXTS]
    assert_equal(alone, everything)
    reverse = translator.translate(TEXTS[::-1], beam=beam, max_length=20)
    assert_equal(reverse[::-1], everything)
    for size in (2, 7):
        parts = [TEXTS[i : i + size] for i in range(0, len(TEXTS), size)]
        found = [
            one for part in parts for one in translator.translate(part, beam=beam, max_length=20)
        ]
        assert_equal(found, everything)
    for tokens in (1, 100, 400):
        assert_equal(
            translator.translate(TEXTS, beam=beam, max_length=20, batch_tokens=tokens), everything
        )


def test_batches_hold_what_they_may(translator, monkeypatch):
    batches = []
    search = translator._search

    def watch(sources, prefixes, options, lines):
        batches.append([len(ids) for ids in sources])
        return search(sources, prefixes, options, lines)

    monkeypatch.setattr(translator, "_search", watch)
    translator.translate(TEXTS * 3, beam=2, max_length=2, batch_tokens=200)
    assert len(batches) > 3
    assert all(len(batch) * (max(batch) + 1) * 2 <= 200 or len(batch) == 1 for batch in batches)
    lengths = [length for batch in batches for length in batch]
    assert lengths == sorted(lengths, reverse=True)
    assert len(lengths) == 3 * 9


def test_the_end_mark_counts_in_a_batch():
    sources = {i: [5] * 9 for i in range(3)}
    assert list(_batches(sources, 29)) == [[0, 1], [2]]
    assert list(_batches(sources, 30)) == [[0, 1, 2]]
    assert list(_batches(sources, 0)) == [[0], [1], [2]]


def test_blank_texts_come_back_empty_in_place(translator):
    for text, found in zip(TEXTS, translator.translate(TEXTS, max_length=9), strict=True):
        blank = not text.strip(" \t\u2028\u2581")
        assert (found == Translation()) == blank
    assert translator.translate("") == Translation()
    assert translator.translate(["", " "]) == [Translation()] * 2
    assert translator.translate([]) == []


def test_a_source_that_is_too_long_is_cut_and_named(translator, caplog):
    long = "this old dog likes every boat " * 40
    texts = [TEXTS[0], "", long, TEXTS[4]]
    with caplog.at_level(logging.WARNING):
        found = translator.translate(texts, max_length=8)
    assert [record.getMessage() for record in caplog.records] == [
        f"line 3: its {len(translator._source_tokenizer.encode(long))} pieces are more than the "
        "model reads; cut after 63"
    ]
    assert [one.source_cut for one in found] == [False, False, True, False]
    assert_equal([found[0], found[3]], translator.translate([TEXTS[0], TEXTS[4]], max_length=8))


def test_the_longest_source_and_output_fit_the_positions(translator):
    """62 pieces + 50 more are over the model's 64 positions."""
    long = "this old dog likes every boat " * 40
    for beam in (1, 2):
        found = translator.translate([long, "a"], beam=beam, min_length=1000)
        assert [len(one.token_log_probs) for one in found] == [64, 51]
        assert [one.output_cut for one in found] == [True, True]


def test_one_text_is_one_line(translator):
    assert translator.translate("the red\nhorse", max_length=9) == translator.translate(
        "the red horse", max_length=9
    )
    for one in translator.translate(TEXTS, n_best=4):
        assert not set("\n\r\u2028") & set(one.text + "".join(text for text, _ in one.alternatives))


def test_a_translation_tells_its_pieces_their_log_probs_and_the_other_hypotheses(translator):
    found = translator.translate(TEXTS[0], beam=5, n_best=3, max_length=12, min_length=4)
    assert len(found.token_log_probs) == len(found.tokens) + 1
    assert 4 <= len(found.token_log_probs) <= 12
    assert found.log_prob == pytest.approx(sum(found.token_log_probs), abs=1e-4)
    assert found.score == found.log_prob / ((5 + len(found.token_log_probs)) / 6) ** 0.6
    assert found.text.strip() == "".join(found.tokens).replace("\u2581", " ").strip()
    scores = [found.score, *(score for _, score in found.alternatives)]
    assert len(scores) == 3
    assert scores == sorted(scores, reverse=True)


def test_an_output_begins_with_its_prefix(translator):
    for one in translator.translate(TEXTS[:3], prefix="the old"):
        assert one.text.startswith("the old")
    first, second = translator.translate(TEXTS[:2], prefix=["a red", ""], beam=1)
    assert first.text.startswith("a red")
    assert_equal([second], [translator.translate(TEXTS[1], beam=1)])


def test_impossible_options_are_refused(translator):
    for options, named in (
        ({"beam": 0}, "beam = 0"),
        ({"beam": True}, "beam = True"),
        ({"beam": 2, "n_best": 3}, "n_best=3"),
        ({"alpha": -1.0}, "alpha = -1.0"),
        ({"max_length": 0}, "max_length = 0"),
        ({"beams": 3}, "did you mean 'beam'"),
        ({"sample": True, "beam": 3}, "beam=3"),
    ):
        with pytest.raises(SettingsError, match=named) as refused:
            translator.translate("a", **options)
        assert "\n" not in str(refused.value)
    with pytest.raises(SettingsError, match="1 prefixes for 2 texts"):
        translator.translate(["a", "a"], prefix=["a"])


def test_what_is_no_model_is_refused(tmp_path):
    with pytest.raises(BundleError):
        Translator.load(tmp_path)


@pytest.mark.parametrize("path", [None, 5, b"run", "", "a\0", ["run"]])
def test_what_names_no_model_is_refused_in_a_line(monkeypatch, path):
    load = inspect.unwrap(Translator.load.__func__)  # as outside the tests: types are not checked
    monkeypatch.setattr(bundle, "load", inspect.unwrap(bundle.load))
    with pytest.raises(BundleError) as refused:
        load(Translator, path)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("tokens", ["x", 0, -5, 2.0, True])
def test_what_is_no_size_of_a_batch_is_refused_in_a_line(translator, tokens):
    translate = inspect.unwrap(Translator.translate)
    with pytest.raises(SettingsError, match=r"^batch_tokens = .*: a whole number of at least 1$"):
        translate(translator, "a", batch_tokens=tokens)


def test_what_is_no_text_is_refused_in_a_line(translator):
    translate = inspect.unwrap(Translator.translate)  # as outside the tests: types are not checked
    for given, named in (
        (None, "a list of strings, not NoneType"),
        (3, "not int"),
        (b"a dog", "not bytes"),
        ([None], "text 1 of the list is no string, but NoneType"),
        (["a", 3], "text 2 of the list is no string, but int"),
        ([["a"]], "text 1 of the list is no string, but list"),
    ):
        with pytest.raises(DataError, match=named) as refused:
            translate(translator, given)
        assert "\n" not in str(refused.value)
        if given is not None:
            with pytest.raises(DataError, match="prefix"):
                translate(translator, ["a", "b"], prefix=given)
    assert len(translate(translator, (text for text in TEXTS[:2]), max_length=5)) == 2


def test_every_option_reaches_the_search(translator, monkeypatch):
    seen = []

    def watch(sources, prefixes, options, lines):
        seen.append(options)
        return search(sources, prefixes, options, lines)

    search = translator._search
    monkeypatch.setattr(translator, "_search", watch)
    options = {
        "sample": True, "alpha": 0.5, "n_best": 3, "min_length": 2, "extra_length": 7, "seed": 5,
        "max_length": 9, "no_repeat_ngram": 3, "temperature": 0.5, "top_k": 9, "top_p": 0.9,
    }  # fmt: skip
    assert set(options) | {"beam"} == set(SearchOptions.model_fields)
    translator.translate("this old dog", **options)
    assert seen == [SearchOptions(**options)]


def test_a_sample_is_the_same_alone_in_any_batch_and_in_any_order(translator):
    options = SearchOptions(sample=True, n_best=2, max_length=20, seed=3)
    everything = translator.translate_lines(TEXTS, options)
    assert len({one.text for one in everything}) > 8
    assert_equal(translator.translate(TEXTS, **options.model_dump()), everything)
    numbers = range(1, len(TEXTS) + 1)
    for size in (1, 2, 7):
        found = [
            one
            for i in range(0, len(TEXTS), size)
            for one in translator.translate_lines(
                TEXTS[i : i + size], options, numbers=numbers[i : i + size]
            )
        ]
        assert_equal(found, everything)
    for tokens in (1, 100, 400):
        assert_equal(translator.translate_lines(TEXTS, options, batch_tokens=tokens), everything)
    backwards = translator.translate_lines(TEXTS[::-1], options, numbers=numbers[::-1])
    assert_equal(backwards[::-1], everything)
    # The first is the only one where only one is drawn; the others are told in their order.
    single = translator.translate_lines(TEXTS, SearchOptions(sample=True, max_length=20, seed=3))
    assert_equal(single, everything)
    third = translator.translate_lines(TEXTS, options.model_copy(update={"n_best": 3}))
    assert [[t for t, _ in one.alternatives[:1]] for one in third] == [
        [t for t, _ in one.alternatives] for one in everything
    ]


def test_another_seed_or_line_number_is_another_sample(translator):
    texts = ["this old dog likes every boat"] * 8
    first, again, other = (
        [one.text for one in translator.translate(texts, sample=True, seed=seed, max_length=20)]
        for seed in (1, 1, 2)
    )
    assert first == again
    assert len(set(first + other)) > 12


def test_samples_fill_a_batch_as_beams_do(translator, monkeypatch):
    sizes = []
    search = translator._search

    def watch(sources, prefixes, options, lines):
        sizes.append(len(sources))
        return search(sources, prefixes, options, lines)

    monkeypatch.setattr(translator, "_search", watch)
    texts = ["the old child sees a dog"] * 12
    translator.translate(texts, sample=True, n_best=4, max_length=2, batch_tokens=250)
    drawn = list(sizes)
    sizes.clear()
    translator.translate(texts, beam=4, max_length=2, batch_tokens=250)
    assert drawn == sizes
    assert len(sizes) > 1


def test_no_three_pieces_come_twice(translator):
    def repeated(one):
        triples = list(zip(one.tokens, one.tokens[1:], one.tokens[2:], strict=False))
        return len(set(triples)) < len(triples)

    for options in ({"beam": 1}, {"beam": 4}, {"sample": True, "temperature": 0.1}):
        options |= {"min_length": 40}
        assert any(repeated(one) for one in translator.translate(TEXTS, **options))
        found = translator.translate(TEXTS, no_repeat_ngram=3, **options)
        assert not any(repeated(one) for one in found)


@pytest.mark.parametrize("beam", [1, 4])
@pytest.mark.parametrize("copies", [2, 3])
def test_an_ensemble_of_a_model_with_itself_is_the_model(loaded, translator, beam, copies):
    ensemble = Translator(*[loaded] * copies)
    for options in ({"beam": beam, "n_best": beam}, {"sample": True, "seed": 4}):
        found = ensemble.translate(TEXTS, max_length=20, **options)
        assert found == translator.translate(TEXTS, max_length=20, **options)


def test_an_ensemble_scores_with_the_mean_of_the_probabilities(tokenizer, loaded):
    others = [loaded, make(tokenizer, seed=14), make(tokenizer, seed=15)]
    ensemble = Translator(*others)
    text = "every quiet bird paints the tree"
    source = torch.tensor([[*tokenizer.encode(text), EOS]])
    for options in ({"beam": 1}, {"beam": 4}):
        found = ensemble.translate(text, max_length=9, **options)
        ids = [tokenizer._processor.piece_to_id(piece) for piece in found.tokens]
        ids = [*ids, EOS]
        with torch.no_grad():
            each = [
                one.model(source, torch.tensor([[BOS, *ids[:-1]]]))[0].double().softmax(1)
                for one in others
            ]
        mean = sum(p[range(len(ids)), ids] for p in each) / 3
        assert list(found.token_log_probs) == pytest.approx(mean.log().tolist(), abs=1e-5)
    alone = [Translator(one).translate(text, max_length=9).text for one in others]
    assert len(set(alone)) == 3


def test_an_ensemble_reads_what_its_shortest_member_can(tokenizer, loaded, caplog):
    short = make(tokenizer, seed=14, max_length=16)
    for members in ((loaded, short), (short, loaded)):
        caplog.clear()
        found = Translator(*members).translate("this old dog likes every boat " * 9, min_length=30)
        assert "cut after 15" in caplog.text
        assert found.source_cut
        assert len(found.token_log_probs) == 16


def test_an_ensemble_of_other_tokenizers_is_refused_and_named(tokenizer, loaded, tmp_path):
    other = train_tokenizer([WORDS, "and more"], TokenizerConfig(), vocab_size=320)
    odd = loaded._replace(target_tokenizer=other)
    with pytest.raises(BundleError, match=r"^model 3: its target tokenizer is not that of model 1"):
        Translator(loaded, loaded, odd)
    same = Tokenizer(tokenizer.model)  # equal bytes, another object
    Translator(loaded, loaded._replace(source_tokenizer=same, target_tokenizer=same))

    folders = [tmp_path / name for name in ("one", "two")]
    for folder, one in zip(folders, (loaded, odd), strict=True):
        folder.mkdir()
        bundle.save(folder, one, "card")
    with pytest.raises(BundleError) as refused:
        Translator.load(*folders)
    assert str(refused.value).startswith(f"{folders[1]}: its target tokenizer is not that of ")
    assert "\n" not in str(refused.value)
    twice = Translator.load(folders[0], folders[0])
    assert twice.translate(TEXTS, max_length=9) == Translator(loaded).translate(TEXTS, max_length=9)


HOSTILE = [
    b"\xef\xbb\xbfthis old dog",
    b"",
    b"this old dog likes every boat " * 40,
    b"every \xff quiet bird",
    b" \t \r",
    b"the \xef\xbb\xbf red horse",
    b"\xe2\x80\xa8",
    b"a small \xe2\x28 child",
    b"",
    b"the old child sees a dog",
]


@pytest.mark.parametrize("window", [1, 3, 4, 100])
@pytest.mark.parametrize("skip", [0, 3])
def test_a_stream_gives_each_line_what_it_gives_alone(translator, tmp_path, caplog, window, skip):
    """Blank, overlong and badly encoded lines, a byte order mark: whatever the window or batch."""
    path = tmp_path / "text"
    path.write_bytes(b"\n".join(HOSTILE))
    options = SearchOptions(beam=2, max_length=8)
    texts = [line.decode("utf-8", errors="replace").strip("\r\n") for line in HOSTILE]
    texts[0] = texts[0].removeprefix("\ufeff")
    alone = [translator.translate_lines([text], options)[0] for text in texts]
    assert [one == Translation() for one in alone] == [i in (1, 4, 6, 8) for i in range(10)]
    assert [one.source_cut for one in alone] == [i == 2 for i in range(10)]
    for batch_tokens in (1, 100):
        caplog.clear()
        windows = translate_stream(
            translator,
            read_lines_leniently(path, skip=skip),
            options=options,
            window=window,
            batch_tokens=batch_tokens,
            pause=None,
        )
        found = [one for window in windows for one in window]
        assert_equal(found, alone[skip:])
        messages = sorted(record.getMessage() for record in caplog.records)
        named = [re.search(r"line (\d+)", message)[1] for message in messages]
        assert sorted(named) == [number for number in "348" if int(number) > skip]
