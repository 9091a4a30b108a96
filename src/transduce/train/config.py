"""The settings of a training run, as the command line, a recipe or Python gives them."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, create_model, model_validator

from transduce.config import Settings, leaves
from transduce.errors import SettingsError
from transduce.model.config import PRESETS, TransformerConfig
from transduce.text.corpus import DataConfig
from transduce.text.tokenizer import TokenizerConfig

if TYPE_CHECKING:

    class ModelSettings(Settings):
        """See below: the checker cannot follow create_model."""

        preset: str = "auto"

else:
    ModelSettings = create_model(
        "ModelSettings",
        __base__=Settings,
        __doc__="A preset ('auto': by the size of the corpus) and the fields that differ from it.",
        preset=(Literal["auto", *PRESETS], "auto"),
        **{
            name: (field.rebuild_annotation() | None, None)
            for name, field in TransformerConfig.model_fields.items()
            if not name.endswith("vocab_size")  # the tokenizer says
        },
    )


Share = Annotated[float, Field(ge=0, lt=1)]
Count = Annotated[int, Field(gt=0, le=10**9)]
Scale = Annotated[float, Field(gt=0, le=1e30)]
TEXT_FILES = ("source", "target", "tsv", "valid_source", "valid_target", "valid_tsv")
FILES = (*TEXT_FILES, "start_from")
"""What is read; the same bytes elsewhere are the same, of a model its weights'."""


class TrainSettings(Settings):
    """How long and how to train; what is None is chosen from the corpus (defaults.py) and told.

    Steps are updates; tokens are subword pieces a side, padding included. Source: the paper's
    sections 5.3 and 5.4 for Adam, the schedule and label smoothing, 6.1 for averaging and the beam.
    """

    max_steps: Count | None = None
    batch_tokens: int | None = Field(None, gt=0, le=10**18)
    accumulate: Count = 1
    learning_rate_scale: Scale | None = None
    warmup: Count | None = None
    adam_betas: tuple[Share, Share] = (0.9, 0.98)
    adam_epsilon: float = Field(1e-9, ge=1e-37, le=1)  # float32 has none much smaller
    label_smoothing: Share = 0.1
    clip_norm: float = Field(0.0, ge=0, le=1e9)
    """Largest norm of the gradient; 0 does not clip, as in the paper."""
    validate_every: Count | None = None
    save_every: Count | None = None
    log_every: Count = 50
    ema_decay: Share | None = None
    """Validate and save a moving average of the weights, which keeps this share of itself a step
    (Polyak & Juditsky 1992); at step t at most (1 + t) / (10 + t), as in Marian, so that the first
    weights are soon forgotten. 0 averages nothing, as in the paper."""
    average_last: Count = 5
    """How many of the last validated checkpoints are kept and averaged at the end."""
    snapshots: bool = False
    """Keep the model of every checkpoint, in RUN/snapshots, to look at how it learnt."""
    patience: int = Field(8, ge=0, le=10**9)
    """Validations in a row without a better BLEU before training stops; 0 never stops early."""
    beam: int = Field(4, gt=0, le=1000)
    alpha: float = Field(0.6, ge=0, le=10)


class TrainConfig(Settings):
    """Everything that `transduce train` needs: where the text is, and what is not as by default.

    Raises:
        SettingsError: no text, two kinds of it, or half of a pair of files.
    """

    source: Path | None = None
    target: Path | None = None
    tsv: Path | None = None
    valid_source: Path | None = None
    valid_target: Path | None = None
    valid_tsv: Path | None = None
    start_from: Path | None = None
    """A model to fine-tune: training begins with its weights, and keeps its shape and subwords."""
    out: Path = Path("transduce-run")
    seed: int = Field(1, ge=0, lt=2**63)
    device: str = "auto"
    threads: int = Field(0, ge=0, le=1024)
    """CPU threads; 0 lets PyTorch choose."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    tensorboard: bool = False
    """Write the numbers of metrics.jsonl to RUN/tensorboard/ too."""
    source_language: str = Field("", max_length=1000)  # with a bound, it has to be Unicode too
    target_language: str = Field("", max_length=1000)
    licence: str = Field("", max_length=100_000)
    note: str = Field("", max_length=100_000)
    """What people should know who see the model: shown by info, and beside what it computes."""
    data: DataConfig = DataConfig()
    tokenizer: TokenizerConfig = TokenizerConfig()
    model: ModelSettings = ModelSettings()
    train: TrainSettings = TrainSettings()

    @model_validator(mode="after")
    def _one_kind_of_text(self) -> "TrainConfig":
        for name in ("out", *FILES):
            if "\0" in str(path := getattr(self, name)):
                raise SettingsError(f"{name} = {str(path)!r}: a file's name has no NUL in it")
        for kind, source, target, tsv in (
            ("", self.source, self.target, self.tsv),
            ("valid-", self.valid_source, self.valid_target, self.valid_tsv),
        ):
            if (source is None) != (target is None):
                there, lacking = ("source", "target") if target is None else ("target", "source")
                raise SettingsError(f"--{kind}{there} needs --{kind}{lacking}: text goes in pairs")
            if source is not None and tsv is not None:
                raise SettingsError(
                    f"give --{kind}source and --{kind}target, or --{kind}tsv, not both"
                )
        if self.source is None and self.tsv is None:
            raise SettingsError("no text to learn from: give --source and --target, or --tsv")
        return self

    @model_validator(mode="after")
    def _what_the_start_decides(self) -> "TrainConfig":
        groups = self.model_dump(include={"model", "tokenizer"}, exclude_unset=True)
        given = [name for name, _ in leaves(groups) if name != "model.dropout"]
        if self.start_from is not None and given:
            raise SettingsError(
                f"{', '.join(given)}: the shape and the subwords are those of the model that "
                "start_from names; leave this out (model.dropout may be given)"
            )
        return self

    def identity(self) -> dict:
        """What makes a run the same run, beside the bytes of its text: all that decides a byte."""
        elsewhere = dict.fromkeys(("out", "device", "threads", "tensorboard", *FILES), True)
        return self.model_dump(mode="json", exclude=elsewhere | {"train": {"snapshots"}})

    def text_files(self) -> dict[str, Path]:
        """The text files that were given, by the name of their setting."""
        given = {name: getattr(self, name) for name in TEXT_FILES}
        return {name: path for name, path in given.items() if path is not None}
