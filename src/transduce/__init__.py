"""The Transformer of "Attention Is All You Need": from two text files to a translator."""

from transduce.decode.translator import Translation, Translator
from transduce.model.config import PRESETS, TransformerConfig
from transduce.model.tiny import TinyTransformer
from transduce.model.transformer import Transformer, attention
from transduce.text.tokenizer import Tokenizer
from transduce.train.config import TrainConfig
from transduce.train.start import train

__version__ = "0.1.0"
__all__ = [
    "PRESETS",
    "TinyTransformer",
    "Tokenizer",
    "TrainConfig",
    "Transformer",
    "TransformerConfig",
    "Translation",
    "Translator",
    "attention",
    "train",
]
