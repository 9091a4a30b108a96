"""The guide's toy: a Transformer small enough to print."""

import torch

from transduce.model.config import TransformerConfig
from transduce.model.transformer import Transformer


class TinyTransformer(Transformer):
    """A complete model for the guide's snippets: vocabulary 16, two layers a side, no dropout.

    Its output weights start at half their usual size, so that any toy first guesses nearly evenly:
    its loss is near ln 16.
    """

    def __init__(self) -> None:
        """Make it; its first weights follow torch's seed."""
        super().__init__(
            TransformerConfig(
                source_vocab_size=16,
                target_vocab_size=16,
                d_model=32,
                heads=4,
                d_ff=64,
                encoder_layers=2,
                decoder_layers=2,
                dropout=0.0,
                tie="none",
            )
        )
        with torch.no_grad():
            self.output.weight /= 2
