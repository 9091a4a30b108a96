"""Loads settings and knows none: defaults, then a TOML recipe, then `key=value`; strict."""

import difflib
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, time
from pathlib import Path
from typing import Any, TypeVar, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError

from transduce.errors import SettingsError
from transduce.toml_lines import key_lines

_LARGEST_RECIPE = 1 << 20


class _Wrong(Exception):
    """What is wrong with the setting of a path; where it was said is for others to add."""

    def __init__(self, path: tuple[str | int, ...], message: str, *, value: bool = False) -> None:
        super().__init__(message)
        self.path = path
        self.value = value
        """Whether the value is wrong, which the message tells, and not the name."""


class _OurErrors(type(BaseModel)):
    """Settings that are made in Python go wrong as those of a recipe do."""

    def __call__(cls: Any, *positional: Any, **tree: Any) -> Any:
        try:
            return super().__call__(*positional, **tree)
        except ValidationError as error:
            raise SettingsError(str(_explain(cls, error))) from None


class Settings(BaseModel, metaclass=_OurErrors):
    """A frozen group of settings; it stands in the file that uses it.

    Unknown keys are refused, and so are types that need a conversion (`True` for 1, `"8"` for 8)
    and numbers that are none (nan, inf).

    Raises:
        SettingsError: an unknown key or a wrong value.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, protected_namespaces=()
    )


S = TypeVar("S", bound=Settings)


def load(
    kind: type[S],
    recipe: Path | None = None,
    overrides: Sequence[str] = (),
    *,
    values: Mapping[str, Any] | None = None,
    root: Path | None = None,
) -> S:
    """Read settings of one kind: its defaults, the recipe, `values`, then `a.b=value` overrides.

    A file named in the recipe is relative to `root`, or to the recipe.

    Raises:
        SettingsError: no recipe, not TOML, an unknown key (the nearest is named), a wrong value; a
            line of the recipe is named.
    """
    tree: dict[str, Any] = {}
    text = ""
    if recipe is not None:
        text, tree = _read_toml(recipe)
        _anchor(kind, tree, root or recipe.parent)
    tree.update(values or {})
    given = {_apply(tree, override): override for override in overrides}
    try:
        return _make(kind, tree)
    except _Wrong as wrong:
        place = "" if recipe is None else f"{_place(recipe, text, wrong.path)}: "
        if any(wrong.path[:1] == (name,) for name in values or {}):
            place = ""
        for path, override in given.items():
            if _same_branch(path, wrong.path):
                place = "" if wrong.value else f"--set {override}: "
        raise SettingsError(f"{place}{wrong}") from None


def validate(kind: type[S], tree: Mapping[str, Any]) -> S:
    """Make settings of a tree of plain values, such as JSON and TOML have.

    Raises:
        SettingsError: an unknown key or a wrong value, by its dotted name.
    """
    try:
        return _make(kind, tree)
    except _Wrong as wrong:
        raise SettingsError(str(wrong)) from None


def _make(kind: type[S], tree: Mapping[str, Any]) -> S:
    try:
        return kind.model_validate(_as_python(kind, tree))
    except ValidationError as error:
        raise _explain(kind, error) from None


def _as_python(kind: type[Settings], tree: Mapping[str, Any]) -> dict[str, Any]:
    """Put what JSON and TOML lack in place of what stands for it: a path, a tuple, no date."""
    # Not by way of JSON text: a file's name need not be Unicode.
    values = dict(tree)
    for key in tree.keys() & kind.model_fields.keys():
        value, annotation, group = tree[key], kind.model_fields[key].annotation, _group(kind, key)
        if group and isinstance(value, Mapping):
            values[key] = _as_python(group, value)
        elif isinstance(value, date | time):
            values[key] = str(value)
        elif get_origin(annotation) is tuple and isinstance(value, list):
            values[key] = tuple(value)
        elif annotation in (Path, Path | None) and isinstance(value, str):
            values[key] = Path(value)
    return values


def _explain(kind: type[Settings], error: ValidationError) -> _Wrong:
    """The first thing that is wrong; names come before values, and the outer before the inner."""
    first = min(error.errors(), key=lambda e: (e["type"] != "extra_forbidden", len(e["loc"])))
    if not first["loc"]:
        return _Wrong((), f"unknown setting {_short(first['input'])}: it is not Unicode")
    *path, key = map(str, first["loc"])
    name = ".".join((*path, key))
    if first["type"] == "extra_forbidden":
        group = kind
        for part in path:
            group = _group(group, part) or group
        near = [".".join((*path, n)) for n in difflib.get_close_matches(key, group.model_fields)]
        near += [known for known in names(kind) if known.endswith(f".{key}")]
        hint = f"did you mean '{near[0]}'?" if near else f"known: {', '.join(group.model_fields)}"
        return _Wrong(first["loc"], f"unknown setting {_short(name)[1:-1]}, {hint}")
    if first["type"] == "model_type":
        return _Wrong(first["loc"], f"{name} is a group of settings, write {name}.NAME")
    message = f"{first['msg'][0].lower()}{first['msg'][1:]}"
    return _Wrong(first["loc"], f"{name} = {_short(first['input'])}: {message}", value=True)


def _short(value: Any) -> str:
    try:
        text = repr(value)
    except ValueError:  # a number of thousands of digits
        return "a number without end"
    return text if len(text) <= 200 else f"{text[:200]}..."


def _place(recipe: Path, text: str, path: tuple[str | int, ...]) -> str:
    """Name the recipe, and the line of a setting if that is certain."""
    keys = tuple(key for key in path if isinstance(key, str))
    line = key_lines(text).get(keys) if path[: len(keys)] == keys else None
    return f"{recipe}, line {line}" if line else str(recipe)


def _same_branch(path: tuple[str, ...], other: tuple[str | int, ...]) -> bool:
    return all(a == b for a, b in zip(path, other, strict=False))


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Name the settings in which two trees differ, each as `a.b was 1, is 2`."""
    before, after = dict(leaves(old)), dict(leaves(new))
    return [
        f"{name} was {_told(before.get(name))}, is {_told(after.get(name))}"
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name)
    ]


def _told(value: Any) -> str:
    return "not given" if value is None else repr(value)


def leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The settings of a tree by their dotted names."""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _read_toml(path: Path) -> tuple[str, dict[str, Any]]:
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise SettingsError(f"{path} is a pipe or a device, not a file")
    try:
        with path.open(encoding="utf-8-sig") as file:
            text = file.read(_LARGEST_RECIPE + 1)
        if len(text) > _LARGEST_RECIPE:
            raise ValueError("it is larger than a megabyte")
        return text, tomllib.loads(text)
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        reason = "it is not UTF-8"
    except RecursionError:
        reason = "it is nested too deeply"
    except ValueError as error:
        reason = str(error)
    raise SettingsError(
        f"{path} is not TOML: {reason}; a recipe holds settings, text is given with --source and "
        "--target, or --tsv"
    )


def _anchor(kind: type[Settings], tree: dict[str, Any], root: Path) -> None:
    """Make the files to read absolute or relative to here; what is written stays where one is."""
    for key, field in kind.model_fields.items():
        if field.annotation == Path | None and isinstance(tree.get(key), str):
            tree[key] = str(root / tree[key])


def _apply(tree: dict[str, Any], override: str) -> tuple[str, ...]:
    """Put `a.b=value` into the tree, return a, b; the value is TOML, and text needs no quotes."""
    key, equals, text = override.partition("=")
    if not equals or not key.strip():
        raise SettingsError(f"--set {override}: a setting is written key=value")
    try:
        value, *more = tomllib.loads(f"value = {text}").values()
        value = text if more else value  # text of several lines
    except (ValueError, RecursionError):  # no TOML, or a number without end
        value = text
    *sections, name = key.strip().split(".")
    branch = tree
    for section in sections:
        branch = branch.setdefault(section, {})
        if not isinstance(branch, dict):
            raise SettingsError(f"--set {override}: {section} is no group of settings")
    old = branch.get(name)
    branch[name] = old | value if isinstance(old, dict) and isinstance(value, dict) else value
    return (*sections, name)


def names(kind: type[Settings], path: str = "") -> Iterator[str]:
    """The dotted names of all settings."""
    for key in kind.model_fields:
        group = _group(kind, key)
        yield from names(group, f"{path}{key}.") if group else (f"{path}{key}",)


def _group(kind: type[Settings], key: str) -> type[Settings] | None:
    """The settings class of a field that holds a group of them."""
    annotation = kind.model_fields[key].annotation
    if isinstance(annotation, type) and issubclass(annotation, Settings):
        return annotation
    return None
