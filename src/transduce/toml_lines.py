"""The line of a TOML document on which a key stands: what `tomllib` does not tell.

Where it is not certain (tables that come in arrays, whatever is no TOML) there is no line, never a
wrong one.
"""

import re
import tomllib

Keys = tuple[str, ...]

_BLANK = re.compile(r"(?:[ \t]|#[^\n]*)*")
_BLANK_LINES = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_STRING = re.compile(
    r'"""(?:\\.|[^\\])*?"{3,5}'
    r"|'''.*?'{3,5}"
    r'|"(?:\\.|[^"\\\n])*"'
    r"|'[^'\n]*'",
    re.DOTALL,
)
_OTHER_VALUE = re.compile(r"[^,\]}#\r\n]+")  # numbers, dates (they may hold a space), true, false


def key_lines(text: str) -> dict[Keys, int]:
    """Return the line, from 1, on which each key of a document is first named, by its whole path.

    The document is one that `tomllib` reads; of another the result is empty.
    """
    scanner = _Scanner(text)
    try:
        scanner.document()
    except (ValueError, IndexError, RecursionError):
        return {}
    return scanner.lines


class _Scanner:
    """Walks through a document once, from key to key."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0
        self.lines: dict[Keys, int] = {}
        self._arrays: set[Keys] = set()
        self._line, self._counted = 1, 0

    def document(self) -> None:
        table: Keys | None = ()
        while self._more():
            if self._skip("[["):
                self._arrays.add(self._name(table=()))
                self._skip("]]")
                table = None
            elif self._skip("["):
                table = self._name(table=())
                self._skip("]")
            else:
                self._pair(table)

    def _pair(self, table: Keys | None) -> None:
        path = self._name(table)
        if not self._skip("="):
            raise ValueError("a key without a value")
        self._value(path if table is not None else None)

    def _name(self, table: Keys | None) -> Keys:
        """Take a dotted key, and note where it stands; without a table it is not known whose."""
        self._take(_BLANK)
        self._line += self.text.count("\n", self._counted, self.at)
        self._counted = self.at
        path = table or ()
        while True:
            self._take(_BLANK)
            quoted = self.text[self.at] in "\"'"
            word = self._take(_STRING if quoted else _BARE_KEY)
            path += (tomllib.loads(f"word = {word}")["word"] if quoted else word,)
            if table is not None and not any(path[: len(a)] == a for a in self._arrays):
                self.lines.setdefault(path, self._line)
            self._take(_BLANK)
            if not self._skip("."):
                return path

    def _value(self, path: Keys | None) -> None:
        self._take(_BLANK)
        if self._skip("["):
            while self._more("]"):
                self._value(None)
        elif self._skip("{"):
            while self._more("}"):
                self._pair(path)
        else:
            self._take(_STRING if self.text[self.at] in "\"'" else _OTHER_VALUE)

    def _more(self, end: str = "") -> bool:
        """Go to the next thing in the document, or in brackets; False past the end."""
        self._take(_BLANK_LINES)
        if end and self._skip(","):
            self._take(_BLANK_LINES)
        return not self._skip(end) if end else self.at < len(self.text)

    def _take(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self.text, self.at)
        if match is None:
            raise ValueError("no TOML")
        self.at = match.end()
        return match[0]

    def _skip(self, word: str) -> bool:
        there = self.text.startswith(word, self.at)
        self.at += len(word) * there
        return there
