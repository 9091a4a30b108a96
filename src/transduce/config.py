"""Loads settings and knows none: defaults, then a TOML recipe, then `key=value`; strict."""

import difflib
import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from transduce.errors import SettingsError


class Settings(BaseModel):
    """A frozen group of settings; it stands in the file that uses it.

    Unknown keys are refused, and so are types that need a conversion (`True` for 1, `"8"` for 8)
    and numbers that are none (nan, inf).
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
        SettingsError: no recipe, not TOML, an unknown key (the nearest is named), a wrong value.
    """
    tree: dict[str, Any] = {}
    if recipe is not None:
        tree = _read_toml(recipe)
        _check_keys(kind, tree, where=f"{recipe}: ")
        _anchor(kind, tree, root or recipe.parent)
    tree.update(values or {})
    for override in overrides:
        _apply(tree, override)
        _check_keys(kind, tree, where=f"--set {override}: ")
    return validate(kind, tree)


def validate(kind: type[S], tree: Mapping[str, Any]) -> S:
    """Make settings of a tree of plain values.

    Raises:
        SettingsError: an unknown key or a wrong value, by its dotted name.
    """
    _check_keys(kind, tree, where="")
    try:
        # JSON mode: a list is a tuple, a string is a path; True is still no number. JSON has no
        # dates: what TOML takes for one is text.
        return kind.model_validate_json(json.dumps(tree, default=str))
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        message = first["msg"][0].lower() + first["msg"][1:]
        raise SettingsError(f"{name} = {first['input']!r}: {message}") from None


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Name the settings in which two trees differ, each as `a.b was 1, is 2`."""
    before, after = dict(leaves(old)), dict(leaves(new))
    return [
        f"{name} was {before.get(name)!r}, is {after.get(name)!r}"
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name)
    ]


def leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The settings of a tree by their dotted names."""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(
            f"{path} is not TOML: {error}; text is given with --source and --target, or --tsv"
        ) from None


def _anchor(kind: type[Settings], tree: dict[str, Any], root: Path) -> None:
    """Make the files to read absolute or relative to here; what is written stays where one is."""
    for key, value in tree.items():
        if kind.model_fields[key].annotation == Path | None and isinstance(value, str):
            tree[key] = str(root / value)


def _apply(tree: dict[str, Any], override: str) -> None:
    """Put `a.b=value` into the tree; the value is TOML, and text needs no quotes."""
    key, equals, text = override.partition("=")
    if not equals:
        raise SettingsError(f"--set {override}: a setting is written key=value")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except ValueError:  # no TOML, or a number without end
        value = text
    *sections, name = key.strip().split(".")
    branch = tree
    for section in sections:
        branch = branch.setdefault(section, {})
        if not isinstance(branch, dict):
            raise SettingsError(f"--set {override}: {section} is no group of settings")
    branch[name] = value


def _check_keys(
    kind: type[Settings],
    tree: Mapping[str, Any],
    *,
    where: str,
    path: str = "",
    known: Sequence[str] = (),
) -> None:
    known = known or list(_names(kind))
    for key, value in tree.items():
        field = kind.model_fields.get(key)
        if field is None:
            here = difflib.get_close_matches(key, kind.model_fields, n=1)
            elsewhere = [name for name in known if name.endswith(f".{key}")]
            near = [f"{path}{name}" for name in here] or elsewhere
            hint = (
                f"did you mean '{near[0]}'?" if near else f"known: {', '.join(kind.model_fields)}"
            )
            raise SettingsError(f"{where}unknown setting {path}{key}, {hint}")
        if group := _group(kind, key):
            if not isinstance(value, Mapping):
                raise SettingsError(
                    f"{where}{path}{key} is a group of settings, write {path}{key}.NAME"
                )
            _check_keys(group, value, where=where, path=f"{path}{key}.", known=known)


def _names(kind: type[Settings], path: str = "") -> Iterator[str]:
    """The dotted names of all settings."""
    for key in kind.model_fields:
        group = _group(kind, key)
        yield from _names(group, f"{path}{key}.") if group else (f"{path}{key}",)


def _group(kind: type[Settings], key: str) -> type[Settings] | None:
    """The settings class of a field that holds a group of them."""
    annotation = kind.model_fields[key].annotation
    if isinstance(annotation, type) and issubclass(annotation, Settings):
        return annotation
    return None
