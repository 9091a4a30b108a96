"""The pieces of benchmarks/referent.py: pairs, places of words, what is hidden and exchanged."""

import random
import re
import sys
from pathlib import Path

import pytest
import torch
from tracing import SMALL

from transduce import Translator, record
from transduce.bundle import Bundle
from transduce.demo.grammar import corpus, split_of
from transduce.ids import BOS, EOS
from transduce.model.config import TransformerConfig
from transduce.model.transformer import Transformer
from transduce.text.tokenizer import TokenizerConfig, train_tokenizer

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
import contrast
import referent


@pytest.fixture(scope="module")
def translator():
    """A random model of the demo's language."""
    lines = corpus(1, train=2000, valid=0, test=0).train
    texts = [text for line in lines for text in (line.source, line.target)]
    tokenizer = train_tokenizer(texts, TokenizerConfig(), vocab_size=700)
    torch.manual_seed(0)
    size = {"source_vocab_size": tokenizer.size, "target_vocab_size": tokenizer.size}
    config = TransformerConfig.model_validate(
        SMALL | size | {"heads": 2, "encoder_layers": 1, "decoder_layers": 1}
    )
    about = {"source_language": "en", "target_language": "fr", "licence": ""}
    return Translator(Bundle(Transformer(config).eval(), tokenizer, tokenizer, about))


@pytest.fixture(scope="module")
def model(translator):
    return translator.bundles[0].model


@pytest.fixture(scope="module")
def pairs(translator):
    return contrast.contrast_pairs(12, 3, translator.bundles[0].source_tokenizer)


@pytest.fixture(scope="module")
def batch(translator, pairs):
    return contrast.batch_of(pairs, *translator.bundles[0][1:3])


def test_a_pair_differs_in_one_adjective_and_so_in_its_pronoun(translator, pairs):
    tokenizer = translator.bundles[0].source_tokenizer
    assert pairs == contrast.contrast_pairs(12, 3, tokenizer)
    assert len({pair[0] for pair in pairs}) == len(pairs) == 12
    for pair in pairs:
        first, second = (sentence.source.split() for sentence in pair)
        assert [a == b for a, b in zip(first, second, strict=True)].index(False) == len(first) - 1
        pronouns = [re.findall(r"parce qu'(il|elle) ", sentence.target) for sentence in pair]
        assert sorted(found for (found,) in pronouns) == ["elle", "il"]
        assert {split_of(sentence.key) for sentence in pair} == {"test"}


def test_each_word_is_found_at_its_pieces(translator, pairs, batch):
    tokenizer = translator.bundles[0].source_tokenizer
    rows = [pair[reading] for reading in (0, 1) for pair in pairs]
    for i, row in enumerate(rows):
        text = {
            word: tokenizer.decode(batch.source[i][at[i]].tolist())
            for word, at in batch.words.items()
        }
        start = re.fullmatch(r"(The) (\w+) .* (the) (\w+) (because) (it) (\w+) (.*)", row.source)
        assert start
        *words, rest = start.groups()
        names = ["The", "noun 1", "the", "noun 2", "because", "it", "was"]
        assert [text[name] for name in names] == words
        assert text["adjective"] == rest.split()[-1][:-1]
        assert text["full stop"] == "."
        assert batch.source[i][batch.words["EOS"][i]].tolist() == [EOS]


def test_log_odds_are_those_of_the_pronoun_after_its_prefix(translator, model, pairs, batch):
    tokenizer = translator.bundles[0].target_tokenizer
    odds = contrast.log_odds(model, batch)
    for i in random.Random(0).sample(range(24), 4):
        row, other = pairs[i % 12][i // 12], pairs[i % 12][1 - i // 12]
        length = len(tokenizer.encode(re.sub(r"(parce qu').*", r"\1", row.target)))
        ids = tokenizer.encode(row.target)
        read = translator.bundles[0].source_tokenizer.encode(row.source)
        with torch.inference_mode():
            prefix = torch.tensor([[BOS, *ids[:length]]])
            logits = model(torch.tensor([[*read, EOS]]), prefix)[0, -1].log_softmax(-1)
        wrong = tokenizer.encode(other.target)[length]
        assert odds[i] == pytest.approx((logits[ids[length]] - logits[wrong]).item(), abs=1e-4)


def test_a_hidden_word_gets_no_weight(model, batch):
    hidden = batch.words["it"]
    with record(model, "*.weights") as tape:
        contrast.blocked(model, batch, hidden)
    for name, weights in tape.items():
        if "decoder" not in name or "cross" in name:
            assert not weights.transpose(1, 3)[hidden].any()
    assert contrast.log_odds(model, batch).ne(contrast.blocked(model, batch, hidden)).any()


def test_with_all_of_the_memory_exchanged_a_sentence_is_its_partner(model, batch):
    odds = contrast.log_odds(model, batch)
    everything = torch.ones_like(batch.source, dtype=torch.bool)
    found = contrast.exchanged(model, batch, everything)
    torch.testing.assert_close(found, -odds.roll(12), atol=1e-4, rtol=0)
    nothing = contrast.exchanged(model, batch, ~everything)
    torch.testing.assert_close(nothing, odds)


def test_all_tables_are_printed(translator, capsys):
    referent.report(translator, 4, 0)
    tables = capsys.readouterr().out.split("\n\n")
    rows = [block.count("\n") - 1 for block in tables if block.startswith("|")]
    blocks, heads = 3, 6
    assert rows == [1 + heads + blocks + 3 + 2 + 1, 11, 11, 2, 2, 5, 7, 6]
