"""Decoding token by token: the cache gives what a whole pass over the prefix gives."""

import pytest
import torch
from torch import Tensor

from transduce.ids import BOS, EOS, PAD
from transduce.model import transformer
from transduce.model.cache import Cache
from transduce.model.config import TransformerConfig
from transduce.model.transformer import Transformer

SOURCES = torch.tensor(
    [[5, 6, 7, 8, EOS], [9, 10, EOS, PAD, PAD], [11, 12, 13, EOS, PAD], [14, 15, EOS, PAD, PAD]]
)


def make(**changes: object) -> Transformer:
    torch.manual_seed(0)
    config = TransformerConfig(
        source_vocab_size=20,
        target_vocab_size=20,
        d_model=16,
        heads=4,
        d_ff=24,
        encoder_layers=2,
        decoder_layers=2,
    )
    model = Transformer(TransformerConfig.model_validate(config.model_dump() | changes)).eval()
    for parameter in model.parameters():
        parameter.data.add_(0.1 * torch.randn_like(parameter))
    return model


def fresh_pass(
    model: Transformer, sentences: list[int], prefixes: list[list[int]]
) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """Logits after each row's prefix without a cache, and each layer's keys and values."""
    kept: dict[str, list[Tensor]] = {"key": [], "value": []}
    handles = [
        getattr(layer.self_attention, part).register_forward_hook(
            lambda module, inputs, x, part=part, layer=layer: kept[part].append(
                layer.self_attention.split(x)
            )
        )
        for layer in model.decoder
        for part in kept
    ]
    logits = model(SOURCES[sentences], torch.tensor(prefixes))[:, -1]
    for handle in handles:
        handle.remove()
    return logits, kept["key"], kept["value"]


def check(model: Transformer, cache: Cache, logits: Tensor, rows: list[tuple[int, list[int]]]):
    sentences, prefixes = [row[0] for row in rows], [row[1] for row in rows]
    expected, keys, values = fresh_pass(model, sentences, prefixes)
    torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-4)
    for layer in range(2):
        for state, fresh in ((cache.keys, keys), (cache.values, values)):
            held = state[layer, :, :, : cache.length]
            torch.testing.assert_close(held, fresh[layer], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize(
    "changes",
    [{}, {"norm": "pre"}, {"positions": "learned", "max_length": 8}, {"d_k": 3, "d_v": 5}],
    ids=["post", "pre", "learned", "widths"],
)
@torch.no_grad()
def test_cached_is_uncached_while_rows_are_reordered_and_sentences_leave(
    changes, width, fused, monkeypatch
):
    monkeypatch.setattr(transformer, "fused_attention_pays", lambda q, k: fused)
    model = make(**changes)
    memory, memory_mask = model.encode(SOURCES)
    cache = model.start(memory, memory_mask, width=width, capacity=8)
    rows = [(sentence, [BOS]) for sentence in range(4) for _ in range(width)]
    leaving = {2: 1, 4: 0, 5: 3}  # after which step which sentence is done
    for step in range(7):
        logits = model.step(torch.tensor([prefix[-1] for _, prefix in rows]), cache)
        check(model, cache, logits, rows)
        living = sorted({sentence for sentence, _ in rows} - {leaving.get(step)})
        chosen = []
        for sentence in living:
            own = [i for i, row in enumerate(rows) if row[0] == sentence]
            picks = torch.randint(len(own), (width,))  # some twice, some never, in any order
            chosen += [own[pick] for pick in picks.tolist()]
        cache.select(torch.tensor(chosen))
        tokens = torch.randint(4, 20, (len(chosen),)).tolist()
        rows = [(rows[i][0], [*rows[i][1], token]) for i, token in zip(chosen, tokens, strict=True)]
    assert {sentence for sentence, _ in rows} == {2}


@torch.no_grad()
def test_rows_that_swap_at_every_step_keep_their_past():
    model = make()
    cache = model.start(*model.encode(SOURCES[:1]), width=2, capacity=6)
    prefixes = [[BOS], [BOS]]
    for step in range(6):
        logits = model.step(torch.tensor([prefix[-1] for prefix in prefixes]), cache)
        check(model, cache, logits, [(0, prefix) for prefix in prefixes])
        cache.select(torch.tensor([1, 0]))
        prefixes = [[*prefixes[1], 4 + step], [*prefixes[0], 12 + step]]


@torch.no_grad()
def test_a_sentence_decodes_alone_as_in_its_batch():
    model = make()
    tokens = torch.tensor([[BOS, 5, 6, 7], [BOS, 8, 9, 4]])
    together = model.start(*model.encode(SOURCES[:2]), width=1, capacity=4)
    alone = model.start(*model.encode(SOURCES[1:2, :3]), width=1, capacity=4)
    for column in tokens.T:
        in_batch, single = model.step(column, together), model.step(column[1:], alone)
        torch.testing.assert_close(in_batch[1:], single, atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_the_memory_is_kept_once_a_sentence_and_leaves_with_it():
    model = make()
    cache = model.start(*model.encode(SOURCES), width=3, capacity=4)
    assert [len(keys) for keys, _ in cache.cross] == [4, 4]
    model.step(torch.full((12,), BOS), cache)
    cache.select(torch.tensor([3, 3, 5, 9, 10, 11]))
    assert [len(values) for _, values in cache.cross] == [2, 2]
    assert torch.equal(cache.memory_mask[:, 0, 0], SOURCES[[1, 3]] != PAD)


@torch.no_grad()
def test_room_ends_with_the_positions():
    model = make(max_length=5)
    cache = model.start(*model.encode(SOURCES), width=1, capacity=100)
    assert cache.keys.shape[3] == cache.values.shape[3] == 5
