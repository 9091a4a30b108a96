"""What every test shares: one thread, the same hypothesis examples everywhere, one browser."""

import os
import re
import shutil
from collections.abc import Generator
from pathlib import Path
from typing import Any

import jaxtyping
import pytest
import torch
from hypothesis import settings

# Tests run beside each other; neither they nor the programs they start should fight for cores.
torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"

settings.register_profile("house", derandomize=True, deadline=None, max_examples=50)
settings.load_profile("house")

# Whose tests run models thousands of times. The checker of shapes makes up half of their time; what
# has shapes in it others call under it.
_UNCHECKED = re.compile(r"test_(alive|beam|crash|guide|learning|page\w*|sampling|train|view)")

# The shell has no windows to draw: half as long, and the same page.
_BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="module", autouse=True)
def _checker_of_shapes(request: pytest.FixtureRequest) -> Generator[None]:
    with pytest.MonkeyPatch.context() as patch:
        if _UNCHECKED.fullmatch(request.module.__name__):
            patch.setattr(jaxtyping.config, "jaxtyping_disable", True)
        yield


@pytest.fixture(scope="module")  # what follows counts the processes of this one
def browser() -> Generator[Any]:
    """The machine's Chromium; TRANSDUCE_BROWSER=required makes its absence a failure."""
    from playwright.sync_api import sync_playwright

    path = next(filter(None, map(shutil.which, _BROWSERS)), None)
    if path is None:
        assert os.environ.get("TRANSDUCE_BROWSER") != "required", "no Chromium is installed"
        pytest.skip("no Chromium is installed: the page is not looked at in a browser")
    options = ["--disable-gpu", "--disable-background-networking", "--disable-component-update"]
    if os.geteuid() == 0:  # root has no sandbox
        options.append("--no-sandbox")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=options)
        yield started
        started.close()


@pytest.fixture
def look(browser: Any, tmp_path: Path) -> Generator[Any]:
    """A `looker.Looker` for one test."""
    from looker import Looker  # and not before the checker of shapes is there

    looker = Looker(browser, tmp_path)
    yield looker
    for context in looker.contexts:
        context.close()
