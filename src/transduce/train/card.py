"""The model card: what a model was made of, how, and how well it does."""

import platform
from typing import Any

import torch

import transduce
from transduce.bundle import Bundle, count_parameters
from transduce.train.config import FILES, TrainConfig
from transduce.train.validate import Validation

SCORES = "Scores on the validation set"
TEXT = "Text"


def model_card(
    config: TrainConfig,
    bundle: Bundle,
    report: dict[str, Any],
    *,
    made: str,
    score: Validation | None,
) -> str:
    """Write the card in Markdown, from the data report and the model's last validation."""
    about = bundle.about
    languages = f"{about['source_language'] or 'source'} to {about['target_language'] or 'target'}"
    parameters = count_parameters(bundle.model)
    architecture = bundle.model.config.model_dump(mode="json")
    files = "\n".join(
        f"- {role}: `{file['name']}` sha256 {file['sha256']}"
        for role, file in report["files"].items()
    )
    data = "\n".join(f"- {line}" for line in report["lines"])
    if score is None:
        scores = "Not validated."
    else:
        scores = (
            f"- BLEU {score.bleu.value:.2f}, {score.bleu.signature}\n"
            f"- perplexity {score.perplexity:.3f} a subword, loss {score.loss:.4f}"
        )
    settings = "\n".join(f"{key} = {value}" for key, value in architecture.items())
    return f"""# A translator, {languages}

Made with transduce {transduce.__version__}. Licence: {about["licence"] or "not stated"}.

## {SCORES}

{made[0].upper()}{made[1:]}, beam {config.train.beam}, alpha {config.train.alpha}:

{scores}

## {TEXT}

{data}

{files}

## Model

{parameters:,} parameters.

```
{settings}
```

## Settings that were given

```json
{config.model_dump_json(exclude={"out", *FILES}, exclude_defaults=True, indent=2)}
```

Python {platform.python_version()}, PyTorch {torch.__version__}.
"""
