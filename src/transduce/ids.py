"""The ids that every vocabulary reserves: padding, begin and end of a sentence, unknown."""

PAD, BOS, EOS, UNK = range(4)
