"""Chooses what was not said from the size of the corpus, and says why."""

from typing import NamedTuple

from transduce.model.config import PRESETS, TransformerConfig
from transduce.train.config import LoopSettings, TrainConfig

# Pairs up to which a size is used; the size, its dropout, passes over the text, rate scale.
# Small data wants a small, strongly regularised model: Wu et al. 2021, Araabi & Monz 2020.
_BY_PAIRS = (
    (100_000, "tiny", 0.3, 40, 1.5),
    (1_000_000, "small", 0.2, 20, 1.0),
    (5_000_000, "base", 0.1, 15, 1.0),
    (float("inf"), "big", 0.1, 10, 1.0),
)


class Choices(NamedTuple):
    """Complete settings, and a line of reason for each thing chosen."""

    architecture: TransformerConfig
    loop: "Loop"
    reasons: list[str]


class Loop(LoopSettings):
    """LoopSettings with nothing left open."""

    max_steps: int
    batch_tokens: int
    learning_rate_scale: float
    warmup: int
    validate_every: int
    save_every: int


def choose_vocab_size(config: TrainConfig, pairs: int) -> int:
    """Number of subwords: a quarter of the pairs, so that each is seen often enough."""
    if config.tokenizer.vocab_size is not None:
        return config.tokenizer.vocab_size
    ceiling = 8_000 if pairs <= 1_000_000 else 32_000
    return min(ceiling, max(1_000, pairs // 4 // 500 * 500))


def choose(
    config: TrainConfig, *, pairs: int, tokens: int, vocab_sizes: tuple[int, int]
) -> Choices:
    """Complete the settings for a corpus of so many pairs and tokens (of the longer side).

    Raises:
        SettingsError: what was said does not go with a preset or with the vocabularies.
    """
    _, auto, dropout, passes, scale = next(row for row in _BY_PAIRS if pairs <= row[0])
    given = config.model.model_dump(exclude_none=True)
    preset = given.pop("preset")
    reasons = []
    if preset == "auto":
        preset = auto
        reasons.append(f"model {preset}: {pairs:,} pairs")
        if "dropout" not in given:
            given["dropout"] = dropout
            reasons.append(f"dropout {dropout}: the less text, the more of it")
    if "tie" not in given and vocab_sizes[0] != vocab_sizes[1]:
        given["tie"] = "decoder"
        reasons.append("tie decoder: the two sides have tokenizers of their own")
    sizes = {"source_vocab_size": vocab_sizes[0], "target_vocab_size": vocab_sizes[1]}
    architecture = TransformerConfig.model_validate(sizes | PRESETS[preset] | given)
    return Choices(architecture, _complete(config.train, tokens, passes, scale, reasons), reasons)


def _complete(
    said: LoopSettings, tokens: int, passes: int, scale: float, reasons: list[str]
) -> Loop:
    batch_tokens = said.batch_tokens or (4096 if tokens >= 200_000 else 1024)
    steps_a_pass = max(1, round(tokens / batch_tokens / said.accumulate))
    max_steps = said.max_steps or max(300, passes * steps_a_pass)
    if said.max_steps is None:
        reasons.append(f"{max_steps:,} steps: {max_steps / steps_a_pass:.0f} passes over the text")
    warmup = said.warmup or min(4000, max(1, max_steps // 3))
    validate_every = said.validate_every or max(1, min(2000, max_steps // 20))
    chosen = {
        "max_steps": max_steps,
        "batch_tokens": batch_tokens,
        "learning_rate_scale": said.learning_rate_scale or scale,
        "warmup": warmup,
        "validate_every": validate_every,
        "save_every": said.save_every or validate_every,
    }
    return Loop.model_validate(said.model_dump() | chosen)
