"""Chooses what was not said from the size of the corpus, and says why."""

import math
import sys
from typing import NamedTuple

import torch
from pydantic import Field

from transduce import bundle
from transduce.device import machine_memory
from transduce.errors import SettingsError
from transduce.model.config import TransformerConfig, preset
from transduce.train.config import Count, Scale, Share, TrainConfig, TrainSettings


class _Size(NamedTuple):
    """What goes with a corpus of up to so many pairs."""

    pairs: int
    preset: str
    norm: str
    dropout: float
    ema_decay: float
    passes: int
    learning_rate_scale: float


# Small data wants a small, strongly regularised model: Wu et al. 2021, Araabi & Monz 2020. Where
# pre-norm and a moving average pay was measured, see docs/training.md.
_SIZES = (
    _Size(20_000, "tiny", "post", 0.3, 0.0, 100, 1.5),
    _Size(100_000, "tiny", "pre", 0.2, 0.999, 40, 1.5),
    _Size(1_000_000, "small", "post", 0.2, 0.0, 20, 1.0),
    _Size(5_000_000, "base", "post", 0.1, 0.0, 15, 1.0),
    _Size(sys.maxsize, "big", "post", 0.1, 0.0, 10, 1.0),
)


class Chosen(TrainSettings):
    """TrainSettings with nothing left open."""

    max_steps: Count
    batch_tokens: int = Field(gt=0, le=10**18)
    learning_rate_scale: Scale
    warmup: Count
    ema_decay: Share = 0.0  # what runs had that were begun before there was one
    validate_every: Count
    save_every: Count


class Choices(NamedTuple):
    """Complete settings, and a line of reason for each thing chosen."""

    architecture: TransformerConfig
    chosen: Chosen
    reasons: list[str]


def choose_vocab_size(config: TrainConfig, *, pairs: int, characters: int) -> int:
    """Number of subwords: a quarter of the pairs, 4,000 at least and 8,000 at most.

    There is room for every character of the text (byte pieces and reserved ids are 260).
    """
    if config.tokenizer.vocab_size is not None:
        return config.tokenizer.vocab_size
    ceiling = 8_000 if pairs <= 1_000_000 else 32_000
    by_pairs = min(ceiling, max(4_000, pairs // 4 // 500 * 500))
    return max(by_pairs, 260 + characters + 500)


def choose(
    config: TrainConfig, *, pairs: int, tokens: int, vocab_sizes: tuple[int, int]
) -> Choices:
    """Complete the settings for a corpus of so many pairs and tokens (of the longer side).

    Raises:
        SettingsError: what was said does not go with a preset or with the vocabularies.
    """
    architecture, reasons = choose_architecture(config, pairs=pairs, vocab_sizes=vocab_sizes)
    size = _size(pairs)
    said = config.train
    chosen = said.model_dump()

    def fill(name: str, value: int | float, reason: str) -> None:
        if chosen[name] is None:
            chosen[name] = value
            if value:
                reasons.append(f"{name} {value:,}: {reason}")

    fill("batch_tokens", 4096 if tokens >= 200_000 else 1024, "subwords a side in one batch")
    steps_a_pass = max(1, round(tokens / chosen["batch_tokens"] / said.accumulate))
    max_steps = max(300, size.passes * steps_a_pass)
    passes = f"{max_steps / steps_a_pass:.0f} passes over the text, of {steps_a_pass:,} each"
    fill("max_steps", max_steps, passes)
    # Above the highest rate a model learns nothing. A tiny one bears more of it with pre-norm.
    scale, longest, highest = (size.learning_rate_scale, 4000, 0.0035)
    if architecture.norm == "pre" and architecture.d_model <= 128:
        scale, longest, highest = (3.0, 1000, 0.0085)
    warmup = min(longest, max(1, chosen["max_steps"] // 3))
    if config.start_from is not None:  # its weights are no longer wild, nor all to be changed
        soon = min(100, warmup)
        scale, highest, warmup = scale / 3 * (soon / warmup) ** 0.5, highest / 3, soon
    fill("warmup", warmup, "steps over which the learning rate rises")
    root = (architecture.d_model * chosen["warmup"]) ** 0.5
    scale = round(min(scale, highest * root), 3)
    fill("learning_rate_scale", scale, f"the learning rate rises to {scale / root:.4f}")
    decay = size.ema_decay if config.model.preset == "auto" else 0.0
    average = "what is saved is a moving average of the weights, which keeps this share a step"
    fill("ema_decay", decay, average)
    every = max(1, min(2000, chosen["max_steps"] // 20))
    fill("validate_every", every, "twenty times, or each 2000 steps")
    chosen["save_every"] = chosen["save_every"] or chosen["validate_every"]
    return Choices(architecture, Chosen.model_validate(chosen), reasons)


def choose_architecture(
    config: TrainConfig, *, pairs: int, vocab_sizes: tuple[int, int]
) -> tuple[TransformerConfig, list[str]]:
    """Complete the model's settings, with a line of reason for each thing chosen.

    Raises:
        SettingsError: what was said does not go together.
    """
    size = _size(pairs)
    given = config.model.model_dump(exclude_none=True)
    name = given.pop("preset")
    reasons = [f"vocabulary {' and '.join(f'{n:,}' for n in dict.fromkeys(vocab_sizes))} subwords"]
    if config.start_from is not None:
        start = bundle.read_config(config.start_from)["architecture"]
        _check_room(config, start.max_length)
        reasons[0] += ": subwords and all else of the model are as they were"
        return start.model_copy(update=given), reasons
    if config.tokenizer.vocab_size is None:
        reasons[0] += ": by the numbers of pairs and of characters; fewer where text has no more"
    if name == "auto":
        name = size.preset
        reasons.append(f"model {name}: so many pairs want this size")
        if "dropout" not in given:
            given["dropout"] = size.dropout
            reasons.append(f"dropout {size.dropout}: the less text, the more of it")
        if "norm" not in given and size.norm == "pre":
            given["norm"] = size.norm
            reasons.append("norm pre: so small a model then bears a higher learning rate")
    if "tie" not in given and not config.tokenizer.shared:
        given["tie"] = "decoder"
        reasons.append("tie decoder: the two sides have tokenizers of their own")
    if given.get("tie") == "all" and not config.tokenizer.shared:
        raise SettingsError("model.tie=all needs tokenizer.shared=true: one table, one vocabulary")
    _check_room(config, given.setdefault("max_length", max(1024, config.data.max_length + 1)))
    source, target = vocab_sizes
    return preset(name, source, target_vocab_size=target, **given), reasons


def _check_room(config: TrainConfig, positions: int) -> None:
    if config.data.max_length >= positions:
        raise SettingsError(
            f"data.max_length={config.data.max_length} does not fit into "
            f"model.max_length={positions}: one position is the end's; lower data.max_length"
        )


def check_memory(architecture: TransformerConfig, tokens: int, device: torch.device) -> None:
    """Check that a model and batches of so many tokens can fit, before any of it is made.

    Raises:
        SettingsError: the least it takes is more than there is.
    """
    shapes, _ = bundle.measure(architecture)
    # Weights, gradients and Adam's two moments in float32; of each token, in bfloat16, what the
    # layers keep for the backward pass (Korthikanti et al. 2022, halved).
    layers = architecture.encoder_layers + architecture.decoder_layers
    kept = layers * (8 * architecture.d_model + architecture.d_ff)
    least = 16 * sum(map(math.prod, shapes.values())) + 2 * kept * tokens
    if least > (there := machine_memory(device)):
        raise SettingsError(
            f"this training takes {least / 1e9:,.1f} GB of memory at least, and {device} has "
            f"{there / 1e9:,.1f}; lower model.d_model, d_ff or the layers, or train.batch_tokens"
        )


def settle_start(config: TrainConfig) -> TrainConfig:
    """Name the model to start from by its own folder: a run's `best` may lead elsewhere tomorrow.

    Raises:
        BundleError: there is no model.
    """
    if config.start_from is None:
        return config
    return config.model_copy(update={"start_from": bundle.find(config.start_from).resolve()})


def check_settings(config: TrainConfig, device: torch.device) -> None:
    """Check, before the text is read, that settings go together and with this machine's memory.

    Raises:
        SettingsError: they do not, whatever the text is.
        BundleError: the model to start from is damaged.
    """
    architecture, _ = choose_architecture(config, pairs=0, vocab_sizes=(300, 300))
    check_memory(architecture, 0, device)
    if config.start_from is not None:
        bundle.load(config.start_from)


def _size(pairs: int) -> _Size:
    return next(size for size in _SIZES if pairs <= size.pairs)
