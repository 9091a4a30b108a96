"""Text to ids and back on SentencePiece: the special ids, the normal form, training, saving.

User text never becomes a reserved id: what spells `</s>` or `<0x41>` is encoded as ordinary text.
Marks (BOS, EOS) are not the tokenizer's business; whoever builds a batch adds them.
"""

import io
import logging
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal

import sentencepiece
from pydantic import Field

from transduce.config import Settings
from transduce.errors import TokenizerError
from transduce.files import read_plain
from transduce.ids import BOS, EOS, PAD, UNK

log = logging.getLogger(__name__)

_LARGEST_MODEL_FILE = 1 << 26
_LARGEST_VOCABULARY = 1_000_000  # of numbers much larger, SentencePiece dies without an error

# Whatever some reader takes for the end of a line, and U+2581, SentencePiece's sign for the space.
_SPACES = re.compile("[\r\v\f\x1c\x1d\x1e\x85\u2028\u2029\u2581]")
_SURROGATE = re.compile("[\ud800-\udfff]")


def normalize(text: str) -> str:
    """Return the normal form of a text: what the model reads, and the form of what it writes.

    Unicode NFC; LF, CR, VT, FF, U+001C-1E, U+0085, U+2028, U+2029 and U+2581 become a space each;
    half a surrogate pair, which no UTF-8 file can hold, becomes U+FFFD. Everything else stays,
    white space included. Idempotent.
    """
    if text.isascii() and text.isprintable():  # most lines, and nothing to do for them
        return text
    return _SURROGATE.sub("\ufffd", normalize_lines(text)).replace("\n", " ")


def normalize_lines(text: str) -> str:
    """Return the normal form of each line of a text that has been UTF-8; lines end at LF."""
    return _SPACES.sub(" ", unicodedata.normalize("NFC", text))


class TokenizerConfig(Settings):
    """How subwords are learnt; `vocab_size` None means: chosen from the size of the corpus."""

    vocab_size: int | None = Field(None, ge=1, le=_LARGEST_VOCABULARY)
    shared: bool = True
    kind: Literal["bpe", "unigram"] = "bpe"
    character_coverage: float = Field(0.9995, ge=0.98, le=1)


class Tokenizer:
    """A trained subword model: text to bare ids and back.

    `decode(encode(text)) == normalize(text)` for every text.
    """

    def __init__(self, model: bytes) -> None:
        """Take the bytes of a SentencePiece model.

        Raises:
            TokenizerError: they are not one, or ids 0-3 are not PAD, BOS, EOS, UNK.
        """
        self.model = model
        self._processor = sentencepiece.SentencePieceProcessor()
        try:
            p = self._processor
            p.LoadFromSerializedProto(model)
            self.pieces(range(self.size))  # of a damaged model they may not be UTF-8
        except (RuntimeError, UnicodeError):
            raise TokenizerError("this is not a SentencePiece model") from None
        if (found := (p.pad_id(), p.bos_id(), p.eos_id(), p.unk_id())) != (PAD, BOS, EOS, UNK):
            raise TokenizerError(
                "the SentencePiece model must have pad, bos, eos and unk as ids"
                f" {PAD}, {BOS}, {EOS}, {UNK}; it has {', '.join(map(str, found))}"
            )

    @classmethod
    def load(cls, path: Path) -> "Tokenizer":
        """Read a model file.

        Raises:
            TokenizerError: there is no such file, or it is not a usable model.
        """
        try:
            return cls(read_plain(path, _LARGEST_MODEL_FILE))
        except OSError as error:
            raise TokenizerError(f"{path}: cannot be read ({error.strerror})") from None
        except TokenizerError as error:
            raise TokenizerError(f"{path}: {error}") from None

    def save(self, path: Path) -> None:
        """Write the model file: byte for byte what `load` reads."""
        path.write_bytes(self.model)

    @property
    def size(self) -> int:
        """How many ids there are, reserved ones included: the rows of an embedding."""
        return self._processor.get_piece_size()

    def encode(self, text: str) -> list[int]:
        """Return the bare ids of a text (no BOS, no EOS), none of them reserved."""
        return self._processor.encode(normalize(text))

    def encode_all(self, texts: Sequence[str], threads: int) -> list[list[int]]:
        """Encode many texts on several threads; the result does not depend on their number."""
        return self._processor.encode([normalize(text) for text in texts], num_threads=threads)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of some ids in its normal form; reserved ids are skipped.

        Bytes that are not UTF-8 become U+FFFD.
        """
        return normalize(self._processor.decode([i for i in ids if i > UNK]))

    def single_bytes(self) -> list[bool]:
        """Of each id, whether it stands for one byte of a character that has no piece."""
        return [self._processor.is_byte(i) for i in range(self.size)]

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Return what a person is shown for each id: U+2581 begins a word, `<0x41>` is a byte."""
        return [self._processor.id_to_piece(i) for i in ids]


def train_tokenizer(texts: Iterable[str], config: TokenizerConfig, *, vocab_size: int) -> Tokenizer:
    """Learn subwords; the same texts in the same order give the same model, byte for byte.

    Where the corpus cannot fill `vocab_size` the vocabulary is smaller, and a warning says so.

    Raises:
        TokenizerError: there is no text, or `vocab_size` is too small (the smallest is named).
    """
    assert 1 <= vocab_size <= _LARGEST_VOCABULARY, vocab_size
    corpus = _TrainingText(texts)
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=corpus.sentences(),
            model_writer=model,
            vocab_size=max(vocab_size, 4 + 256),  # below, it does not say how large it has to be
            model_type=config.kind,
            character_coverage=config.character_coverage,
            byte_fallback=True,
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            add_dummy_prefix=True,
            hard_vocab_limit=False,
            pad_id=PAD,
            bos_id=BOS,
            eos_id=EOS,
            unk_id=UNK,
            # In bytes, and the most it takes; longer lines are left out in silence.
            max_sentence_length=1 << 30,
            num_threads=8,  # fixed: the sums of unigram training depend on it
            minloglevel=4,
        )
    except RuntimeError as error:
        raise corpus.error or _explain(str(error), corpus, vocab_size) from None
    if not corpus.found_text:
        raise _explain("", corpus, vocab_size)
    tokenizer = Tokenizer(model.getvalue())
    if tokenizer.size < vocab_size:
        log.warning(
            "the text cannot fill a vocabulary of %d; it has %d entries", vocab_size, tokenizer.size
        )
    return tokenizer


def _explain(error: str, corpus: "_TrainingText", vocab_size: int) -> TokenizerError:
    """Turn what SentencePiece says into what the user can do about it."""
    if not corpus.found_text:
        return TokenizerError("there is no text to learn subwords from")
    if match := re.search(r"smaller than required_chars\. \d+ vs (\d+)", error):
        return TokenizerError(
            f"a vocabulary of {vocab_size} cannot hold 4 reserved ids, 256 bytes and the characters"
            f" of this text; vocab_size must be at least {match[1]}"
        )
    return TokenizerError(f"SentencePiece cannot learn from this text: {error}")


class _TrainingText:
    """Hands texts to SentencePiece and remembers what its errors do not tell."""

    def __init__(self, texts: Iterable[str]) -> None:
        self.texts = texts
        self.found_text = False
        self.error: BaseException | None = None

    def sentences(self) -> Iterator[str]:
        try:
            for text in self.texts:
                sentence = normalize(text)
                self.found_text = self.found_text or bool(sentence.strip())
                # SentencePiece skips, in silence, each line that holds its private sign U+2585.
                yield sentence.replace("\u2585", " ")
        except (Exception, KeyboardInterrupt) as error:  # SentencePiece hides it in a RuntimeError
            self.error = error
            raise
