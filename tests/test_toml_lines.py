"""The line that is found for a key of a TOML document is the right one, or there is none."""

import tomllib
from collections.abc import Iterator

import pytest
from hypothesis import given, strategies
from hypothesis.strategies import DrawFn

from transduce.toml_lines import key_lines


def walk(tree: dict, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The path of each key below tables, as tomllib reads them."""
    for key, value in tree.items():
        yield (*path, key)
        if isinstance(value, dict):
            yield from walk(value, (*path, key))


TRICKY = [
    *("1", "-2.5e3", "1979-05-27 07:32:00", "1979-05-27T07:32:00Z", "true", "inf", '""', "''"),
    *('"a = 1"', "'[x]'", r'"\"\\"', r"'\'", '"# no"', "'''\nb = 2\n[c]\n'''", "''''a''''"),
    *('"""\n# a = 1\n[b]\n\\"""\n"""', '"""a""\n"""', '"""""a"""""', '"""\\\n  a = 2"""'),
    *("[1, 2]", "[\n  'a = 1', # ]\n  [2], # {\n]", "[[], [\n]]", "[{a = 1}, {a = '}'}]"),
]


@strategies.composite
def documents(  # noqa: C901 - a grammar
    draw: DrawFn,
) -> tuple[str, dict[tuple[str, ...], int]]:
    """A document, and for each of its keys the line on which its statement begins."""
    names = iter(draw(strategies.permutations([f"k{i}" for i in range(40)])))
    text, lines = "", {}
    line = 1

    def word() -> tuple[str, str]:
        name = next(names)
        style = draw(strategies.integers(0, 4))
        if style == 0:
            return name + "é.=#", f'"{name}\\u00e9.=#"'
        if style == 1:
            return name + "] '\"[", f'"{name}] \'\\"["'
        return name, f"'{name}'" if style == 2 else name

    def dotted(table: tuple[str, ...], most: int) -> tuple[tuple[str, ...], str]:
        words = [word() for _ in range(draw(strategies.integers(1, most)))]
        for count in range(len(words)):
            lines.setdefault((*table, *(w for w, _ in words[: count + 1])), line)
        dot = draw(strategies.sampled_from([".", " . "]))
        return (*table, *(w for w, _ in words)), dot.join(shown for _, shown in words)

    def value(path: tuple[str, ...], depth: int = 0) -> None:
        nonlocal text
        if depth < 2 and draw(strategies.integers(0, 4)) == 0:
            text += "{ "
            for number in range(draw(strategies.integers(0, 2))):
                text += ", " * (number > 0)
                inner, shown = dotted(path, 2)
                text += f"{shown} = "
                value(inner, depth + 1)
            text += " }"
        else:
            text += draw(strategies.sampled_from(TRICKY))

    table: tuple[str, ...] = ()
    for _ in range(draw(strategies.integers(0, 9))):
        kind = draw(strategies.integers(0, 5))
        line = text.count("\n") + 1
        if kind == 0:
            text += draw(strategies.sampled_from(["\n", "# a = 1\n", " \t# [b]\n", "\r\n"]))
        elif kind == 1:
            table, shown = dotted((), 2)
            text += f"[ {shown} ] # x = 1\n"
        else:
            path, shown = dotted(table, 2)
            text += f"{draw(strategies.sampled_from(['', '  ']))}{shown}="
            value(path)
            text += draw(strategies.sampled_from(["\n", " # a = 1\n", "\r\n"]))
    return text, lines


@given(documents())
def test_each_key_is_found_on_its_line(document: tuple[str, dict[tuple[str, ...], int]]):
    text, expected = document
    assert set(walk(tomllib.loads(text))) == set(expected)  # the test's own sanity
    assert key_lines(text) == expected


@given(
    documents(),
    strategies.integers(0, 500),
    strategies.text(alphabet="[]{}='\"\n.,a #", max_size=3),
)
def test_a_document_that_was_changed_has_right_lines_or_none(document, place: int, added: str):
    text = document[0]
    text = text[: place % (len(text) + 1)] + added + text[place % (len(text) + 1) :]
    found = key_lines(text)
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return  # nobody asks for lines of what is no TOML
    paths = set(walk(tree))
    for path, line in found.items():
        if path in paths:
            # What is read up to the line before does not know the key.
            before = "".join(text.splitlines(keepends=True)[: line - 1]) if "\r" not in text else ""
            try:
                assert path not in set(walk(tomllib.loads(before)))
            except tomllib.TOMLDecodeError:
                continue  # it ends within a value


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[[a]]\nx = 1\n[[a]]\nx = 2", {("a",): 1}),
        (
            "[[a]]\n[a.b]\nx = 1\n[[a]]\n[a.b]\nx = 2\n[c]\nx = 1",
            {("a",): 1, ("c",): 7, ("c", "x"): 8},
        ),
        ("a = [{x = 1}]\nx = 2", {("a",): 1, ("x",): 2}),
        ("a.b = 1\na.c = 2", {("a",): 1, ("a", "b"): 1, ("a", "c"): 2}),
        ("no toml", {}),
        ("a = [", {}),
        ("", {}),
    ],
)
def test_what_is_not_certain_has_no_line(text: str, expected: dict[tuple[str, ...], int]):
    assert key_lines(text) == expected


def test_a_long_document_takes_no_time():
    text = "".join(f"[t{i}]\nkey = 'v'\n" for i in range(30_000))
    assert key_lines(text)["t29999", "key"] == 60_000


def test_a_statement_without_end_takes_no_time_and_what_is_before_has_its_line():
    text = "b = 1\na = [\n" + "'a value of twenty',\n" * 40_000 + "]\n"
    assert key_lines(text) == {("b",): 1}
