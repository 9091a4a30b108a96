"""The page Watch it learn, in a browser: the numbers of each snapshot, the film, the keys."""

import copy
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from looker import Looker
from pages import SOURCE, TARGET, traced, translator
from playwright.sync_api import expect

from transduce.trace.learning import Learning, snapshot
from transduce.trace.trace import trace

STEPS = (10, 25, 40)
TRAINING = [{"step": s, "loss": 6.0 / s, "learning_rate": s * 1e-4} for s in (5, 10, 20, 40)]
VALIDATIONS = [{"step": 20, "loss": 0.5, "bleu": 12.5}, {"step": 40, "loss": 0.25, "bleu": 37.5}]


@cache
def learning() -> Learning:
    """Three models between random weights and others."""
    whole = trace(translator(), SOURCE, TARGET)
    found = []
    for step in STEPS:
        bundle = whole.bundle._replace(model=copy.deepcopy(whole.bundle.model))
        torch.manual_seed(step)
        with torch.no_grad():
            for parameter in bundle.model.parameters():
                parameter += torch.randn_like(parameter) * (1 - step / STEPS[-1])
        found.append(snapshot(step, bundle, whole))
    return Learning(whole, "small-run", False, TRAINING, VALIDATIONS, found)


@pytest.fixture(scope="module")
def learnt() -> Learning:
    return learning()


@pytest.fixture
def page(look: Looker, learnt: Learning) -> Any:
    document = traced() | {"run": learnt.to_json()}
    page = look.open(document, "#page=run")
    page.wait_for_selector('[data-testid="run-step"]')
    return page


def at(page: Any, testid: str) -> Any:
    return page.get_by_test_id(testid)


def choose(page: Any, index: int) -> None:
    at(page, f"run-frame-{index}").click()


def test_each_snapshot_shows_its_own_numbers(page: Any, learnt: Learning):
    for index, one in enumerate(learnt.snapshots):
        choose(page, index)
        assert at(page, "run-step").inner_text() == f"step {one.step}"
        assert at(page, "run-text").inner_text().split() == one.text.split()
        mean = -sum(one.log_probs) / len(one.log_probs)
        assert float(at(page, "run-mean").inner_text()) == pytest.approx(mean, abs=5e-4)
        said = at(page, "matrix-sentence").inner_text()
        weights = one.weights["decoder.1.cross_attention"].mean(0).numpy()
        assert f"{np.max(weights):.3f}" in said


def test_a_slider_at_a_step_shows_the_curves_up_to_it(page: Any):
    choose(page, 1)  # step 25: what was told last is of step 20
    value = at(page, "run-loss-training").get_attribute("data-value")
    assert float(value) == pytest.approx(6.0 / 20)
    assert float(at(page, "run-bleu-BLEU").get_attribute("data-value")) == 12.5


def test_another_head_is_drawn_of_the_same_model(page: Any, learnt: Learning):
    choose(page, 0)
    at(page, "run-block").select_option("encoder.0.self_attention")
    at(page, "run-head").select_option("2")
    weights = learnt.snapshots[0].weights["encoder.0.self_attention"][2].numpy()
    assert f"{np.max(weights):.3f}" in at(page, "matrix-sentence").inner_text()
    expect(page.get_by_test_id("matrix-encoder.0.self_attention-2")).to_be_visible()


def test_it_plays_to_the_end_and_stops(page: Any):
    from playwright.sync_api import expect

    choose(page, 0)
    at(page, "run-play").click()
    assert at(page, "run-play").inner_text() == "Stop"
    expect(at(page, "run-step")).to_have_text("step 40")
    expect(at(page, "run-play")).to_have_text("Play")


def test_the_film_is_one_stop_of_the_tab_key(page: Any):
    at(page, "run-frame-2").focus()
    page.keyboard.press("ArrowLeft")
    assert at(page, "run-step").inner_text() == "step 25"
    at(page, "run-at").focus()
    page.keyboard.press("Home")
    assert at(page, "run-step").inner_text() == "step 10"


def test_a_file_without_a_run_says_how_to_get_one(look: Looker):
    page = look.open(traced(), "#page=run")
    assert "--learning" in page.locator("main").inner_text()
