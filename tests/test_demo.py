"""The embedded default keeps its promise: this trains it, which takes two to four minutes."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from transduce import Translator, bundle
from transduce.demo.grammar import EXAMPLES


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_demo_learns_its_grammar(tmp_path: Path):
    out = tmp_path / "demo"
    command = [sys.executable, "-m", "transduce", "demo", "--out", str(out)]
    found = subprocess.run(command, capture_output=True, text=True, timeout=1000)
    assert found.returncode == 0, found.stderr
    match = re.search(r"([\d.]+) % of 1,000 held-out sentences", found.stdout)
    assert match
    assert float(match[1]) >= 98
    model = bundle.load(out).model
    assert sum(parameter.numel() for parameter in model.parameters()) <= 650_000
    translator = Translator.load(out)
    texts = translator.translate([example.source for example in EXAMPLES])
    assert [found.text for found in texts] == [example.target for example in EXAMPLES]
    again = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert again.returncode == 0
    assert "finished" in again.stderr
