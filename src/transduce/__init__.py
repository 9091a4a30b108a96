"""The Transformer of "Attention Is All You Need": from two text files to a translator.

`train` makes a model of text, `Translator` uses it, `trace` shows what it does with a sentence.
`Transformer` is the paper's model by itself; `record` keeps what it computes inside.
The metrics of `transduce evaluate` are in `transduce.evaluate`, the kinds of errors in
`transduce.errors`.
"""

from transduce.decode.search import SearchOptions
from transduce.decode.translator import Translation, Translator
from transduce.errors import TransduceError
from transduce.model.config import PRESETS, TransformerConfig
from transduce.model.tiny import TinyTransformer
from transduce.model.transformer import Transformer, attention
from transduce.text.tokenizer import Tokenizer
from transduce.trace.document import Trace
from transduce.trace.record import record
from transduce.trace.trace import trace
from transduce.train.config import TrainConfig
from transduce.train.start import train

__version__ = "0.1.0"
__all__ = [
    "PRESETS",
    "SearchOptions",
    "TinyTransformer",
    "Tokenizer",
    "Trace",
    "TrainConfig",
    "TransduceError",
    "Transformer",
    "TransformerConfig",
    "Translation",
    "Translator",
    "attention",
    "record",
    "trace",
    "train",
]
