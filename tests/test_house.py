"""The house's own rules: budgets, public names, constants that must agree."""

import ast
from pathlib import Path

import transduce

SOURCE = Path(transduce.__file__).parent
MODULES = sorted(SOURCE.rglob("*.py"))

# What one opens to follow a pair from its file to its checkpoint (docs/design.md, two walks). Not
# what belongs to the machine and not to training: files, processes, signals, screens, devices,
# events; nor what every verb has, the model directory, search and scores.
TRAINING_WALK = [
    *("cli/app.py", "cli/train.py", "config.py", "text/corpus.py", "text/tokenizer.py"),
    *("data/blocks.py", "data/store.py", "data/batching.py"),
    *("model/config.py", "model/transformer.py", "model/loss.py"),
    *(f"train/{path.name}" for path in sorted((SOURCE / "train").glob("*.py"))),
]
# No part of a training: they ask whether one would run, and use what it has made.
for name in ("check", "average", "describe"):
    TRAINING_WALK.remove(f"train/{name}.py")


def functions(tree: ast.Module) -> list[ast.FunctionDef]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]


# A verb's function is its list of options.
LONG_FUNCTIONS = {
    "cli/train.py:settings",
    "cli/translate.py:translate",
    "cli/evaluate.py:evaluate",
    "cli/trace.py:trace",
}


def test_no_module_is_over_400_lines_and_no_function_over_60():
    over = []
    for path in MODULES:
        text = path.read_text(encoding="utf-8")
        name = path.relative_to(SOURCE).as_posix()
        if text.count("\n") > 400:
            over.append(name)
        for function in functions(ast.parse(text)):
            assert function.end_lineno is not None
            if function.end_lineno - function.lineno + 1 > 60:
                over.append(f"{name}:{function.name}")
    assert set(over) <= LONG_FUNCTIONS


def test_every_module_says_in_its_first_line_what_it_owns():
    for path in MODULES:
        docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
        assert docstring, path
        assert docstring.split("\n")[0].endswith((".", ":")), path


def test_training_is_understood_from_at_most_23_files_and_3800_lines():
    lines = sum((SOURCE / name).read_text(encoding="utf-8").count("\n") for name in TRAINING_WALK)
    assert len(TRAINING_WALK) <= 23
    assert lines <= 3800


def test_the_public_names_are_these():
    assert sorted(transduce.__all__) == [
        "PRESETS",
        "SearchOptions",
        "TinyTransformer",
        "Tokenizer",
        "Trace",
        "TrainConfig",
        "TransduceError",
        "Transformer",
        "TransformerConfig",
        "Translation",
        "Translator",
        "attention",
        "record",
        "trace",
        "train",
    ]
    for name in transduce.__all__:
        assert getattr(transduce, name) is not None


def test_nothing_is_pickled():
    for path in MODULES:
        text = path.read_text(encoding="utf-8")
        for word in (
            "import pickle",
            "pickle.load",
            "pickle.dump",
            "torch.load(",
            "torch.save(",
            "allow_pickle=True",
        ):
            assert word not in text, path
