"""The Transformer of "Attention Is All You Need": from two text files to a translator."""

__version__ = "0.1.0"
