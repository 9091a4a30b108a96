"""Settings: where they come from, who wins, and what a wrong one is told; the model's too."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from types import UnionType
from typing import Annotated, Literal, Union, get_args, get_origin

import pytest
from hypothesis import given, reject
from hypothesis import strategies as st
from pydantic import Field, ValidationError
from pydantic.fields import FieldInfo

from transduce.config import Settings, differences, load, validate
from transduce.decode.search import SearchOptions
from transduce.errors import SettingsError
from transduce.model.config import PRESETS, TransformerConfig, preset
from transduce.text.corpus import DataConfig
from transduce.text.tokenizer import TokenizerConfig
from transduce.train.config import TEXT_FILES, TrainConfig


class Search(Settings):
    beam: int = Field(4, gt=0)
    alpha: float = 0.6
    sizes: tuple[int, ...] = (1,)


class Recipe(Settings):
    name: str = "none"
    folder: Path | None = None
    shuffle: bool = True
    seed: int = 1
    search: Search = Search()


@pytest.fixture
def recipe(tmp_path):
    def write(text: str) -> Path:
        path = tmp_path / "recipe.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


# where settings come from


def test_without_anything_settings_are_the_defaults():
    assert load(Recipe) == Recipe()


def test_a_recipe_wins_over_defaults_and_an_override_over_both(recipe):
    path = recipe('name = "año"\nseed = 2\n[search]\nbeam = 8\nalpha = 1\n')
    settings = load(Recipe, path, ["search.beam=16", "seed=3", "seed=4"])
    assert settings.name == "año"
    assert settings.seed == 4
    assert settings.search == Search(beam=16, alpha=1.0)
    assert settings.shuffle is True


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("name=plain text = more", {"name": "plain text = more"}),
        ('name="8"', {"name": "8"}),
        ("name=", {"name": ""}),
        ("name=a#b", {"name": "a#b"}),
        ("name=2026-01-01", {"name": "2026-01-01"}),
        ("folder=some/where", {"folder": Path("some/where")}),
        ("shuffle=false", {"shuffle": False}),
        ("search.alpha=1e-3", {"search": Search(alpha=0.001)}),
        ("search.sizes=[2, 3]", {"search": Search(sizes=(2, 3))}),
        (" seed = 7", {"seed": 7}),
    ],
)
def test_an_override_is_toml_and_text_needs_no_quotes(override, expected):
    assert load(Recipe, None, [override]) == Recipe(**expected)


def test_settings_cannot_change():
    with pytest.raises(ValidationError, match="frozen"):
        Recipe().seed = 2


def test_settings_survive_json(recipe):
    settings = load(Recipe, recipe('folder = "x/y"\n[search]\nsizes = [1, 2]'))
    assert validate(Recipe, settings.model_dump(mode="json")) == settings


# what a wrong one is told


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("seed = 1\n\nsed = 2", 3, "unknown setting sed, did you mean 'seed'?"),
        ("[serch]\nbeam = 1", 1, "unknown setting serch, did you mean 'search'?"),
        ("\n[search]\n\nbeam = 0", 4, "search.beam = 0: input should be greater than 0"),
        ("search.beam = true", 1, "search.beam = True: input should be a valid integer"),
        ("a = 1\nsearch = {beam = 1,  alfa = 2}", 1, "unknown setting a, known: "),
        ("seed = 1\nsearch = {beam = 1,  alfa = 2}", 2, "unknown setting search.alfa, did"),
        ("[search]\nsizes = [\n1,\n'a',\n]", 2, "search.sizes.1 = 'a': input should be"),
        ('name = """\nsedd = 1\n[x]"""\nsedd = 1', 4, "unknown setting sedd, did"),
        ("search = 3\n", 1, "search is a group of settings, write search.NAME"),
        ("[[search]]\nbeam = 3\n", 1, "search is a group of settings, write search.NAME"),
        ("shuffle = 1 # seed = true\nseed = true", 1, "shuffle = 1: input should be a valid bool"),
    ],
)
def test_a_wrong_setting_is_told_with_its_line(recipe, text, line, message):
    path = recipe(text)
    with pytest.raises(SettingsError) as error:
        load(Recipe, path)
    assert str(error.value).startswith(f"{path}, line {line}: {message}")


def test_what_an_override_says_has_no_line(recipe):
    path = recipe("[search]\nbeam = 3\nalpha = 1")
    with pytest.raises(SettingsError, match=r"^search\.beam = 0: input"):
        load(Recipe, path, ["search.beam=0"])
    with pytest.raises(SettingsError, match=r"^seed = 'x': input"):
        load(Recipe, path, values={"seed": "x"})
    with pytest.raises(SettingsError, match=r"recipe\.toml, line 2: search\.beam = 0"):
        load(Recipe, recipe("[search]\nbeam = 0"), ["search.alpha=2"])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"seed": "a"}, "seed = 'a': input should be a valid integer"),
        ({"sed": 1}, "unknown setting sed, did you mean 'seed'?"),
        ({"search": 3}, "search is a group of settings, write search.NAME"),
        ({"folder": "a"}, "folder = 'a': input should be an instance of Path"),
    ],
)
def test_settings_made_in_python_go_wrong_as_those_of_a_recipe(values, message):
    with pytest.raises(SettingsError) as error:
        Recipe(**values)
    assert str(error.value) == message


def test_pydantics_own_doors_stay_open():
    assert Recipe.model_validate({"seed": 2}) == Recipe(seed=2)
    assert Recipe(seed=2).model_copy(update={"seed": 3}).seed == 3
    assert Recipe.model_validate_json('{"folder": "x"}').folder == Path("x")
    with pytest.raises(ValidationError):
        Recipe.model_validate({"seed": "2"})


def test_a_file_name_need_not_be_unicode():
    path = os.fsdecode(b"caf\xe9/text")
    assert validate(Recipe, {"folder": path}).folder == Path(path)
    assert load(Recipe, None, [f"folder={path}"]).folder == Path(path)


@pytest.mark.parametrize(
    "text", ["[" * 10**5, "a = " + "[" * 10**4, "a" * 2**21, "seed = " + "9" * 5000]
)
def test_a_recipe_without_end_is_refused(recipe, text):
    with pytest.raises(SettingsError, match="is not TOML"):
        load(Recipe, recipe(text))


def test_a_value_without_end_is_shown_short(recipe):
    with pytest.raises(SettingsError) as error:
        load(Recipe, recipe(f"shuffle = 0x{'f' * 9000}\n"))
    assert "a number without end" in str(error.value)
    with pytest.raises(SettingsError) as error:
        load(Recipe, recipe(f"seed = '{'f' * 9000}'\n"))
    assert len(str(error.value)) < 500


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("sed=2", "--set sed=2: unknown setting sed, did you mean 'seed'?"),
        (
            "search.beem=2",
            "--set search.beem=2: unknown setting search.beem, did you mean 'search.beam'?",
        ),
        (
            "search.zzz=2",
            "--set search.zzz=2: unknown setting search.zzz, known: beam, alpha, sizes",
        ),
        ("serch.beam=2", "--set serch.beam=2: unknown setting serch, did you mean 'search'?"),
        ("search=2", "--set search=2: search is a group of settings, write search.NAME"),
        ("seed", "--set seed: a setting is written key=value"),
        ("=2", "--set =2: a setting is written key=value"),
        ("=", "--set =: a setting is written key=value"),
    ],
)
def test_an_override_that_names_no_setting(override, message):
    with pytest.raises(SettingsError) as error:
        load(Recipe, None, [override])
    assert str(error.value) == message


def test_an_override_below_a_value(recipe):
    with pytest.raises(SettingsError, match=r"^--set seed.x=2: seed is no group of settings$"):
        load(Recipe, recipe("seed = 1"), ["seed.x=2"])
    with pytest.raises(SettingsError, match=r"^seed = \{'x': 2\}: input should be a valid integer"):
        load(Recipe, None, ["seed.x=2"])


def test_a_recipe_is_named_with_its_unknown_key(recipe):
    path = recipe("[search]\nbeam = 4\nalfa = 1.0")
    with pytest.raises(SettingsError) as error:
        load(Recipe, path)
    assert (
        str(error.value)
        == f"{path}, line 3: unknown setting search.alfa, did you mean 'search.alpha'?"
    )


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("seed=true", "seed = True: input should be a valid integer"),
        ('seed="8"', "seed = '8': input should be a valid integer"),
        ("seed=8.0", "seed = 8.0: input should be a valid integer"),
        ("seed=eight", "seed = 'eight': input should be a valid integer"),
        ("seed=2026-01-01", "seed = '2026-01-01': input should be a valid integer"),
        ("name=8", "name = 8: input should be a valid string"),
        ("shuffle=1", "shuffle = 1: input should be a valid boolean"),
        ("shuffle=yes", "shuffle = 'yes': input should be a valid boolean"),
        ("search.beam=0", "search.beam = 0: input should be greater than 0"),
        ("search.alpha=nan", "search.alpha = nan: input should be a finite number"),
        ("search.alpha=inf", "search.alpha = inf: input should be a finite number"),
        ("search.sizes=[1, 'a']", "search.sizes.1 = 'a': input should be a valid integer"),
    ],
)
def test_a_wrong_value_is_refused_by_its_dotted_name(override, message):
    with pytest.raises(SettingsError) as error:
        load(Recipe, None, [override])
    assert str(error.value) == message


def test_a_recipe_that_cannot_be_read(recipe, tmp_path):
    with pytest.raises(SettingsError, match=r"none.toml: No such file"):
        load(Recipe, tmp_path / "none.toml")
    with pytest.raises(SettingsError, match=r"recipe.toml is not TOML: .*line 2"):
        load(Recipe, recipe("seed = 1\nname = none\n"))
    path = recipe("")
    path.write_bytes(b'name = "\xff"')
    with pytest.raises(SettingsError, match=r"recipe.toml is not TOML: it is not UTF-8;"):
        load(Recipe, path)


def test_differences_are_named():
    old = Recipe().model_dump(mode="json")
    new = Recipe(seed=2, search=Search(alpha=1.0)).model_dump(mode="json")
    assert differences(old, old) == []
    assert differences(old, new) == ["search.alpha was 0.6, is 1.0", "seed was 1, is 2"]
    assert differences({"a": {"b": 1}}, {"a": {}}) == ["a.b was 1, is not given"]


# any settings

GROUPS = [DataConfig, TokenizerConfig, TransformerConfig, SearchOptions, TrainConfig]
WORDS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=8)


def trees(kind: type[Settings]) -> st.SearchStrategy[dict]:
    """Plain values, each within the bounds of its field, of any part of the settings."""
    return st.fixed_dictionaries(
        {}, optional={name: values(field) for name, field in kind.model_fields.items()}
    )


def values(field: FieldInfo) -> st.SearchStrategy:
    return of_type(field.annotation, bounds_of(field.metadata))


def bounds_of(rules: list) -> dict:
    rules = [each for rule in rules for each in getattr(rule, "metadata", [rule])]
    names = ("gt", "ge", "lt", "le")
    return {name: getattr(rule, name) for rule in rules for name in names if hasattr(rule, name)}


def of_type(kind: object, bounds: dict) -> st.SearchStrategy:
    if get_origin(kind) is Annotated:
        inner, *rules = get_args(kind)
        return of_type(inner, bounds_of(rules))
    if get_origin(kind) in (UnionType, Union):
        return st.one_of(*(of_type(one, bounds) for one in get_args(kind)))
    if get_origin(kind) is Literal:
        return st.sampled_from(get_args(kind))
    if get_origin(kind) is tuple:
        return st.tuples(*(of_type(one, {}) for one in get_args(kind))).map(list)
    if kind is int:
        least = bounds.get("ge", bounds.get("gt", -(10**6)) + 1)
        most = bounds.get("le", bounds.get("lt", 10**6 + least) - 1)
        return st.integers(least, min(most, least + 10**6))
    if kind is float:
        return st.floats(
            *(bounds.get("ge", bounds.get("gt", 0.0)), bounds.get("le", bounds.get("lt", 1e6))),
            exclude_min="gt" in bounds,
            exclude_max="lt" in bounds,
        )
    if isinstance(kind, type) and issubclass(kind, Settings):
        return trees(kind)
    simple = {bool: st.booleans(), str: WORDS, type(None): st.none()}
    return simple.get(kind, WORDS.map(str.strip))  # a Path


ANY = st.sampled_from(GROUPS).flatmap(lambda kind: st.tuples(st.just(kind), trees(kind)))


def make(kind: type[Settings], tree: dict) -> Settings:
    if kind is TrainConfig:  # it needs one kind of text
        tree = {"tsv": "text", **{k: v for k, v in tree.items() if k not in TEXT_FILES}}
    try:
        return validate(kind, tree)
    except SettingsError:  # values that contradict each other
        reject()


@given(ANY)
def test_what_is_dumped_is_loaded(drawn: tuple[type[Settings], dict]):
    kind, settings = drawn[0], make(*drawn)
    dump = settings.model_dump(mode="json")
    assert validate(kind, dump) == settings
    assert validate(kind, json.loads(json.dumps(dump))) == settings
    by_hand = [
        f"{name}={json.dumps(value, ensure_ascii=False)}"
        for name, value in leaves(dump)
        if value is not None  # TOML has no word for it; it is a default
    ]
    assert load(kind, None, by_hand) == settings


def leaves(tree: dict, path: str = "") -> Iterator[tuple[str, object]]:
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", value


@given(ANY, st.text(min_size=1), st.sampled_from([None, 0, "", {}, []]), st.integers(0))
def test_an_unknown_key_is_refused_wherever_it_stands(
    drawn: tuple[type[Settings], dict], key: str, value: object, where: int
):
    tree = make(*drawn).model_dump(mode="json")
    groups = [tree, *(value for value in tree.values() if isinstance(value, dict))]
    group = groups[where % len(groups)]
    if key in group:
        reject()
    group[key] = value
    with pytest.raises(SettingsError, match="unknown setting"):
        validate(drawn[0], tree)


@given(
    st.sampled_from(GROUPS).flatmap(lambda kind: st.tuples(st.just(kind), trees(kind), trees(kind)))
)
def test_differences_are_the_same_from_both_sides(drawn: tuple[type[Settings], dict, dict]):
    one, other = make(*drawn[:2]), make(drawn[0], drawn[2])
    old, new = one.model_dump(mode="json"), other.model_dump(mode="json")
    before, after = dict(leaves(old)), dict(leaves(new))
    changed = sorted(name for name in before if before[name] != after[name])
    assert differences(old, old) == []
    assert (differences(old, new) == []) == (one == other)

    def told(value: object) -> str:
        return "not given" if value is None else repr(value)

    pairs = [(n, told(before[n]), told(after[n])) for n in changed]
    assert differences(old, new) == [f"{n} was {one}, is {other}" for n, one, other in pairs]
    assert differences(new, old) == [f"{n} was {other}, is {one}" for n, one, other in pairs]


# the model's settings


def test_the_defaults_are_the_papers_base_model():
    config = TransformerConfig()
    assert (config.d_model, config.d_ff, config.heads) == (512, 2048, 8)
    assert (config.d_k, config.d_v, config.dropout) == (64, 64, 0.1)
    assert (config.encoder_layers, config.decoder_layers) == (6, 6)
    assert (config.norm, config.activation, config.positions) == ("post", "relu", "sinusoidal")
    assert (config.tie, config.layer_norm_epsilon) == ("all", 1e-6)


def test_widths_of_a_head_follow_from_the_model_unless_given():
    config = TransformerConfig(d_model=96, heads=4)
    assert (config.d_k, config.d_v) == (24, 24)
    config = TransformerConfig(d_model=96, heads=4, d_k=5)
    assert (config.d_k, config.d_v) == (5, 24)
    config = TransformerConfig(d_model=96, heads=7, d_k=5, d_v=6)
    assert (config.d_k, config.d_v) == (5, 6)
    assert validate(TransformerConfig, {"d_model": 96, "heads": 4}).d_k == 24


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"heads": 7}, "d_model=512 is not divisible by heads=7"),
        ({"heads": 7, "d_k": 64}, "d_model=512 is not divisible by heads=7"),
        ({"d_model": 9, "heads": 3}, "d_model=9 is odd"),
        ({"source_vocab_size": 100}, "one vocabulary for both sides: source 100, target 37000"),
        ({"heads": 0}, "heads = 0: input should be greater than 0"),
        ({"heads": "8"}, "heads = '8': input should be a valid integer"),
        ({"d_model": -512}, "d_model = -512: input should be greater than 0"),
        ({"dropout": 1.0}, "dropout = 1.0: input should be less than 1"),
        ({"layer_norm_epsilon": 0.0}, "layer_norm_epsilon = 0.0: input should be greater than 0"),
        ({"norm": "both"}, "norm = 'both': input should be 'post' or 'pre'"),
        ({"head": 8}, "unknown setting head, did you mean 'heads'?"),
        ({"target_vocab_size": 3, "source_vocab_size": 3}, "source_vocab_size = 3: input should"),
    ],
)
def test_settings_that_make_no_model(tree, message):
    with pytest.raises(SettingsError) as error:
        validate(TransformerConfig, tree)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("tie", ["decoder", "none"])
def test_sides_may_have_vocabularies_of_their_own_if_their_tables_are_two(tie):
    config = TransformerConfig(source_vocab_size=100, target_vocab_size=200, tie=tie)
    assert (config.source_vocab_size, config.target_vocab_size) == (100, 200)


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_a_model_of_that_vocabulary(name):
    config = preset(name, 1000)
    assert config.source_vocab_size == config.target_vocab_size == 1000
    assert {key: getattr(config, key) for key in PRESETS[name]} == PRESETS[name]


def test_a_preset_can_be_changed():
    config = preset("A-heads-4", 1000, d_model=64, dropout=0.3)
    assert (config.heads, config.d_model, config.d_k, config.dropout) == (4, 64, 16, 0.3)
    with pytest.raises(SettingsError, match="unknown setting head, did you mean 'heads'"):
        preset("base", 1000, head=4)


def test_an_unknown_preset_is_told_what_there_is():
    with pytest.raises(SettingsError, match="no preset 'huge'; there are tiny, small, base, big"):
        preset("huge", 1000)


@pytest.mark.parametrize("kind", [TrainConfig, SearchOptions, TransformerConfig])
def test_every_number_has_an_end(kind: type[Settings]):
    for name, field in kind.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Settings):
            test_every_number_has_an_end(field.annotation)
        elif {int, float} & {field.annotation, *get_args(field.annotation)}:
            assert bounds_of(field.metadata).keys() & {"lt", "le"}, name


@pytest.mark.parametrize("setting", ["train.average_last", "train.patience", "model.max_length"])
def test_a_number_of_400_digits_is_told_in_a_line(setting: str):
    with pytest.raises(SettingsError, match="less than or equal to") as error:
        load(TrainConfig, None, [f"{setting}=1{'0' * 400}"], values={"tsv": "a"})
    assert len(str(error.value)) < 400


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes with names")
@pytest.mark.timeout(10)
def test_a_recipe_that_is_a_pipe_is_not_waited_for(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SettingsError, match=r"pipe is a pipe or a device, not a file$"):
        load(Recipe, tmp_path / "pipe")


def test_no_name_of_a_file_has_a_nul():
    for make in (
        lambda: TrainConfig(tsv=Path("a\0")),
        lambda: load(TrainConfig, values={"tsv": "a", "out": "b\0"}),
        lambda: load(TrainConfig, None, ['valid_tsv="a\\u0000"'], values={"tsv": "a"}),
    ):
        with pytest.raises(
            SettingsError, match=r"^\w+ = '.\\x00': a file's name has no NUL in it$"
        ):
            make()
