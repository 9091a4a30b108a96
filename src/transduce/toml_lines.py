"""The line of a TOML document on which a key stands: what `tomllib` does not tell.

A statement is the fewest lines that `tomllib` reads by themselves; all of its keys have the line on
which it begins. Where a line is not certain (tables in arrays) there is none, never a wrong one.
"""

import tomllib
from collections.abc import Iterator
from typing import Any

Keys = tuple[str, ...]

_AT_MOST = 1 << 23
"""Characters that are given to `tomllib`: one statement of many lines would take for ever."""


def key_lines(text: str) -> dict[Keys, int]:
    """Return the line, from 1, on which each key of a document is first named, by its whole path.

    The document is one that `tomllib` reads.
    """
    lines: dict[Keys, int] = {}
    arrays: set[Keys] = set()
    table: Keys = ()
    statement, read = "", 0
    for number, line in enumerate(text.replace("\r\n", "\n").split("\n"), start=1):
        statement += line + "\n"
        read += len(statement)
        if read > _AT_MOST:
            break
        try:
            tree = tomllib.loads(statement)
        except RecursionError:
            break
        except ValueError:  # it goes on in the next line
            continue
        header = statement.lstrip().startswith("[")
        paths = list(_paths(tree, () if header else table))
        for path in paths:
            if not any(path[:count] in arrays for count in range(len(path) + 1)):
                lines.setdefault(path, number + 1 - statement.count("\n"))
        if header:
            table = paths[-1]
        if statement.lstrip().startswith("[["):
            arrays.add(table)
        statement = ""
    return lines


def _paths(tree: dict[str, Any], path: Keys) -> Iterator[Keys]:
    for key, value in tree.items():
        yield (*path, key)
        if isinstance(value, dict):
            yield from _paths(value, (*path, key))
