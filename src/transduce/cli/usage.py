"""What is said of a command line that cannot be understood."""

import re
from pathlib import Path

import typer

from transduce.config import names
from transduce.train.config import TrainConfig

UsageError = typer.BadParameter.__bases__[0]  # typer keeps its name to itself


def explain(error: Exception) -> str:
    """Return one line: what is wrong, perhaps what was meant, and where help is."""
    told = getattr(error, "message", str(error))
    known = set(getattr(error, "possibilities", None) or ()) - {"--help"}
    path = getattr(getattr(error, "ctx", None), "command_path", "transduce")
    hints = [f"possible options: {', '.join(sorted(known))}"] if known else []
    if path.split()[-1] in ("train", "check"):
        option = getattr(error, "option_name", "").lstrip("-").replace("-", "_")
        hints += [
            f"did you mean --set {name}=...?"
            for name in names(TrainConfig)
            if "." in name and name.split(".")[-1] == option
        ]
        extra = re.fullmatch(r"Got unexpected extra argument.* \((.*)\)", told)
        if extra and any(Path(word).is_file() for word in (extra[1], *extra[1].split())):
            hints.append("text is given with --source and --target, or --tsv")
    if hasattr(error, "param"):  # which of them has a wrong value, is lacking
        told = error.format_message()  # pyrefly: ignore[missing-attribute]
    return f"{'; '.join((told, *hints))} (see {path} --help)"
