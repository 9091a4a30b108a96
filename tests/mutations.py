"""Puts each known fault into a copy of the code, and demands that a test notices.

    python tests/mutations.py [-j 2] [R01 ...]

`faults.toml` has, for each case of the requirements, what is right and the faults: what the code
says, what it would say with the fault, and the tests that must then fail. Each fault is put into a
copy of src/, the tests named run on the copy, and each of them has to fail; on the code as it is
all of them have to pass. The table goes into docs/cases.md. Exit status 1: a fault was not noticed.
"""

import argparse
import gc
import importlib
import multiprocessing
import os
import shutil
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
SLOW = (
    "torch",
    "torch._dynamo",
    "numpy",
    "pydantic",
    "rich.progress",
    "sacrebleu.metrics",
    "typer",
)
SLOW += (
    "safetensors.torch",
    "sentencepiece",
    "hypothesis.strategies",
    "hypothesis.internal.conjecture.engine",
)
PAGE = ROOT / "docs" / "cases.md"
BEGIN, END = "<!-- faults.toml: begin -->\n", "<!-- faults.toml: end -->\n"


class Fault(NamedTuple):
    case: str
    kind: str
    file: str  # below src/transduce
    old: str
    new: str
    tests: tuple[str, ...]  # FILE::NAME below tests/

    def times(self) -> int:
        """How often the code has what the fault changes: once, or the fault says nothing."""
        text = (ROOT / "src" / "transduce" / self.file).read_text(encoding="utf-8")
        return text.count(self.old)


def read() -> tuple[dict[str, str], list[Fault]]:
    """What is right in each case, and all faults."""
    with (Path(__file__).parent / "faults.toml").open("rb") as file:
        tree = tomllib.load(file)
    faults = [
        Fault(case, f["kind"], f["file"], f["old"], f["new"], tuple(f["tests"]))
        for case, entry in tree.items()
        for f in entry["faults"]
    ]
    return {case: entry["right"] for case, entry in tree.items()}, faults


def table(right: dict[str, str], faults: list[Fault]) -> str:
    """The part of docs/cases.md that follows from faults.toml."""
    lines = []
    for case, sentence in right.items():
        lines += [
            f"### {case}",
            "",
            sentence,
            "",
            "| fault | put into | noticed by |",
            "|---|---|---|",
        ]
        for fault in faults:
            if fault.case == case:
                tests = "<br>".join(f"`{test}`" for test in fault.tests)
                lines.append(f"| {fault.kind} | `{fault.file}` | {tests} |")
        lines.append("")
    return "\n".join(lines)


def page(text: str, part: str) -> str:
    """The page with the part between its markers replaced."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{part}\n{END}{after}"


def run_tests(source: Path, tests: list[str], processes: int = 0) -> tuple[int, str]:
    """Run tests on the code below `source`; the exit status of pytest and what it printed.

    For a process that has not imported `transduce` yet, and ends after this.
    """
    os.chdir(ROOT)
    os.environ |= {"PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
    sys.path.insert(0, str(source))
    # Not the checker of types either: a test has to notice by itself, and it is slow to start.
    words = ["-q", "-rfE", "--tb=no", "--timeout=60", "-p", "no:cacheprovider"]
    words += ["-o", "addopts=", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
    words += ["-n", str(processes), *(f"tests/{test}" for test in tests)]
    with tempfile.TemporaryFile("w+") as printed:
        os.dup2(printed.fileno(), 1)
        os.dup2(printed.fileno(), 2)
        status = pytest.main(words)
        sys.stdout.flush()
        printed.seek(0)
        return int(status), printed.read()


def survived_by(fault: Fault) -> list[str]:
    """The tests that do not notice a fault; a text of pytest where they could not run."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "src"
        shutil.copytree(ROOT / "src", source)
        path = source / "transduce" / fault.file
        text = path.read_text(encoding="utf-8")
        path.write_text(text.replace(fault.old, fault.new), encoding="utf-8")
        status, output = run_tests(source, list(fault.tests))
    if status not in (0, 1):
        return [output[-2000:]]
    told = [line.split()[1] for line in output.splitlines() if line.startswith(("FAILED", "ERROR"))]
    failed = {name.partition("[")[0] for name in told}
    return [test for test in fault.tests if f"tests/{test}".partition("[")[0] not in failed]


def main() -> int:
    """Read the command line, try each fault, write the page."""
    for name in SLOW:
        importlib.import_module(name)
    gc.freeze()  # or each process collects anew what it never frees
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("cases", nargs="*", help="such as R01; all where none is named")
    parser.add_argument("-j", type=int, default=2, help="how many at a time")
    asked = parser.parse_args()
    right, faults = read()
    chosen = [fault for fault in faults if not asked.cases or fault.case in asked.cases]
    assert chosen, f"no such case; there are {', '.join(right)}"
    for fault in chosen:
        assert fault.times() == 1, f"{fault.case} {fault.kind}: the code no longer says this once"
    tests = list(dict.fromkeys(test for fault in chosen for test in fault.tests))
    # A process for each fault, forked from this one, which has imported what takes long.
    context = multiprocessing.get_context("fork")
    with context.Pool(asked.j, maxtasksperchild=1) as pool:
        as_it_is = pool.apply_async(run_tests, (ROOT / "src", tests, max(1, asked.j - 1)))
        survivors = 0
        for fault, blind in zip(chosen, pool.imap(survived_by, chosen, chunksize=1), strict=True):
            survivors += bool(blind)
            mark = f"NOT NOTICED by {', '.join(blind)}" if blind else "noticed"
            print(f"{fault.case}  {fault.kind}: {mark}", flush=True)
        status, output = as_it_is.get()
    if status:
        print(output)
        print("on the code as it is, these tests do not all pass")
        return 1
    print(f"{len(chosen)} faults, {survivors} not noticed")
    if not survivors:
        text = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(page(text, table(right, faults)), encoding="utf-8")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
