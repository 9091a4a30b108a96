"""Moses' tokens, which the paper's BLEU counts: the one module that knows sacremoses."""

import re
from collections.abc import Callable
from types import ModuleType

from transduce.errors import SettingsError

LANGUAGES = ("cs", "de", "el", "en", "es", "et", "fr", "hu", "is", "it", "lt", "lv", "nl", "pl",
             "pt", "ro", "ru", "sk", "sl")  # fmt: skip
"""Those that sacremoses splits as Moses does.

It has lists for more, but not Moses' own rules for Catalan, Finnish, Irish, Swedish and Tetun, and
other letters than Perl in the scripts of India; Moses itself leaves Chinese unsplit. (A Chinese
character inside German is a token of its own here, and part of a word in Moses.)
"""
TOKENIZERS = (*(f"moses-{language}" for language in LANGUAGES), "moses-de-atat")
_QUOTES = str.maketrans("„‟«»‚‘‛", '""""\'\'\'')
"""What replace-unicode-punctuation.perl leaves: the publication's reference had them replaced."""


class MosesTokenizer:
    """A text's tokens with spaces between them, for one of `TOKENIZERS`; in sacreBLEU's form.

    Raises:
        SettingsError: a name that does not exist, or sacremoses is not installed.
    """

    def __init__(self, name: str) -> None:
        if name not in TOKENIZERS:
            raise SettingsError(
                f"tokenize {name!r} is unknown; of Moses there are {', '.join(TOKENIZERS)}"
            )
        library = _library(name)
        self._name = f"{name}-{library.__version__}"
        self._split: Callable[..., str] = library.MosesTokenizer(name.split("-")[1]).tokenize
        self._replace: Callable[[str], str] | None = None
        if name.endswith("-atat"):
            self._replace = library.MosesPunctNormalizer().replace_unicode_punct

    def signature(self) -> str:
        """Say how text is split, and by which sacremoses."""
        return self._name

    def __call__(self, text: str) -> str:
        """Split; for -atat as tensor2tensor's get_ende_bleu.sh, both sides alike."""
        if self._replace is None:
            return self._split(text, return_str=True)
        split = self._split(self._replace(text.translate(_QUOTES)), return_str=True)
        # Of a-b-c the second hyphen stays, as b belongs to the first match: so there, so here.
        return re.sub(r"(\S)-(\S)", r"\1 ##AT##-##AT## \2", split)


def _library(name: str) -> ModuleType:
    try:
        import sacremoses
    except ImportError:
        raise SettingsError(f"tokenize {name!r} needs pip install 'transduce[moses]'") from None
    return sacremoses
