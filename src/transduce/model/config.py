"""The settings of a Transformer, and the paper's named sizes."""

from typing import Any, Literal

from pydantic import Field, model_validator

from transduce.config import Settings, validate
from transduce.errors import SettingsError
from transduce.ids import UNK


class TransformerConfig(Settings):
    """The architecture; every default is the paper's base model (section 3, Table 3).

    `d_k` and `d_v` are widths a head; left out, they are d_model / heads.

    Raises:
        SettingsError: values that contradict each other.
    """

    source_vocab_size: int = Field(37_000, gt=UNK, le=2**24)
    target_vocab_size: int = Field(37_000, gt=UNK, le=2**24)
    d_model: int = Field(512, gt=0, le=2**16)
    heads: int = Field(8, gt=0, le=2**10)
    d_k: int = Field(64, gt=0, le=2**16)
    d_v: int = Field(64, gt=0, le=2**16)
    encoder_layers: int = Field(6, gt=0, le=1000)
    decoder_layers: int = Field(6, gt=0, le=1000)
    d_ff: int = Field(2048, gt=0, le=2**20)
    dropout: float = Field(0.1, ge=0, lt=1)
    norm: Literal["post", "pre"] = "post"
    activation: Literal["relu", "gelu", "silu"] = "relu"
    positions: Literal["sinusoidal", "learned"] = "sinusoidal"
    position_layout: Literal["interleaved", "halves"] = "interleaved"
    position_frequency: Literal["paper", "tensor2tensor"] = "paper"
    position_offset: int = Field(0, ge=0, le=2**17)
    tie: Literal["all", "decoder", "none"] = "all"
    layer_norm_epsilon: float = Field(1e-6, gt=0, le=1)
    max_length: int = Field(1024, gt=1, le=2**17)

    @model_validator(mode="before")
    @classmethod
    def _fill_head_widths(cls, values: Any) -> Any:  # noqa: ANN401 - pydantic hands over anything
        if isinstance(values, dict) and not {"d_k", "d_v"} <= values.keys():
            d_model, heads = values.get("d_model", 512), values.get("heads", 8)
            if isinstance(d_model, int) and isinstance(heads, int) and heads > 0:
                if d_model % heads:
                    raise SettingsError(f"d_model={d_model} is not divisible by heads={heads}")
                values = {"d_k": d_model // heads, "d_v": d_model // heads} | values
        return values

    @model_validator(mode="after")
    def _agree(self) -> "TransformerConfig":
        if self.d_model % 2:
            raise SettingsError(
                f"d_model={self.d_model} is odd: positions come in pairs of sin and cos"
            )
        if self.tie == "all" and self.source_vocab_size != self.target_vocab_size:
            raise SettingsError(
                "tie = 'all' needs one vocabulary for both sides: "
                f"source {self.source_vocab_size}, target {self.target_vocab_size}"
            )
        return self


PRESETS: dict[str, dict[str, Any]] = {
    # Wu et al. 2021, "Good for Misconceived Reasons": the small model that wins on 29 000 pairs.
    "tiny": {"d_model": 128, "d_ff": 256, "heads": 4, "encoder_layers": 4, "decoder_layers": 4},
    "small": {"d_model": 256, "d_ff": 1024, "heads": 4, "encoder_layers": 3, "decoder_layers": 3},
    # The paper: section 3 and the rows of Table 3, by the letter of the row and what changes in it.
    "base": {},
    "big": {"d_model": 1024, "d_ff": 4096, "heads": 16, "dropout": 0.3},
    "A-heads-1": {"heads": 1},
    "A-heads-4": {"heads": 4},
    "A-heads-16": {"heads": 16},
    "A-heads-32": {"heads": 32},
    "B-dk-16": {"d_k": 16, "d_v": 64},
    "B-dk-32": {"d_k": 32, "d_v": 64},
    "C-layers-2": {"encoder_layers": 2, "decoder_layers": 2},
    "C-layers-4": {"encoder_layers": 4, "decoder_layers": 4},
    "C-layers-8": {"encoder_layers": 8, "decoder_layers": 8},
    "C-d-256": {"d_model": 256, "d_k": 32, "d_v": 32},
    "C-d-1024": {"d_model": 1024, "d_k": 128, "d_v": 128},
    "C-ff-1024": {"d_ff": 1024},
    "C-ff-4096": {"d_ff": 4096},
    "D-dropout-0.0": {"dropout": 0.0},
    "D-dropout-0.2": {"dropout": 0.2},
    "E-learned": {"positions": "learned"},
}
"""What each named size changes in the defaults above (label smoothing is a matter of training)."""


def preset(name: str, vocab_size: int, **changes: Any) -> TransformerConfig:  # noqa: ANN401
    """Make the settings of a named size with one vocabulary for both sides.

    Raises:
        SettingsError: no such size, or a change that does not fit it.
    """
    if name not in PRESETS:
        raise SettingsError(f"no preset {name!r}; there are {', '.join(PRESETS)}")
    sizes = {"source_vocab_size": vocab_size, "target_vocab_size": vocab_size}
    return validate(TransformerConfig, sizes | PRESETS[name] | changes)
