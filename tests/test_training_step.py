"""The recorded training step: against PyTorch's own loss and optimiser, and finite differences."""

import copy
import math

import contract
import pages
import pytest
import torch
from torch import Tensor
from torch.nn import functional
from tracing import SETTINGS, hooks, make, pair, without

from transduce.errors import TraceError
from transduce.trace import trace as trace_module
from transduce.trace.trace import trace
from transduce.trace.training import Training, training_step

SOURCE, SHIFTED, LABELS = pair(6, 5)


def loss(model: torch.nn.Module) -> Tensor:
    logits = model(torch.tensor([SOURCE]), torch.tensor([SHIFTED]))
    return functional.cross_entropy(logits[0], torch.tensor(LABELS))


def gathered(parts: dict[str, Tensor]) -> dict[str, float]:
    """Lengths by module, with names cut by hand."""
    found: dict[str, list[Tensor]] = {}
    for name, part in parts.items():
        depth = 3 if name[:7] in ("encoder", "decoder") and name[7] == "." else 1
        found.setdefault(".".join(name.split(".")[:depth]), []).append(part.flatten())
    return {name: torch.cat(all_of_it).double().norm().item() for name, all_of_it in found.items()}


@pytest.mark.parametrize("changes", SETTINGS.values(), ids=SETTINGS)
def test_a_step_is_pytorchs(changes):
    model = make(**changes)
    found = training_step(model, SOURCE, LABELS, 2e-3)
    again = copy.deepcopy(model)
    optimizer = torch.optim.Adam(again.parameters(), lr=2e-3, betas=(0.9, 0.98), eps=1e-9)
    first = loss(again)
    first.backward()
    optimizer.step()
    assert sum(found.before) / len(LABELS) == pytest.approx(first.item(), abs=1e-5)
    assert sum(found.after) / len(LABELS) == pytest.approx(loss(again).item(), abs=1e-5)
    assert sum(found.after) < sum(found.before)
    before = dict(model.named_parameters())
    parts = {
        "weights": {name: p.detach() for name, p in before.items()},
        "gradient": {name: p.grad for name, p in again.named_parameters()},
        "moved": {name: p.detach() - before[name] for name, p in again.named_parameters()},
    }
    for what, wanted in parts.items():
        lengths = {name: getattr(moved, what) for name, moved in found.modules.items()}
        # A bias of keys changes no weight: its gradient is rounding alone, which Adam blows up.
        assert lengths == pytest.approx(gathered(wanted), rel=5e-3 if what == "moved" else 1e-4)


def test_each_label_has_its_own_cost():
    model = make()
    with torch.no_grad():
        logits = model(torch.tensor([SOURCE]), torch.tensor([SHIFTED]))[0]
    wanted = functional.cross_entropy(logits, torch.tensor(LABELS), reduction="none")
    assert training_step(model, SOURCE, LABELS).before == pytest.approx(wanted.tolist(), abs=1e-5)


def test_the_gradient_is_that_of_finite_differences():
    """The length of a module's gradient is the slope of the loss along it."""
    model = make().double()
    name = "decoder.1.cross_attention"
    module = model.get_submodule(name)
    parts = list(module.parameters())
    slopes = [part.grad for part in parts if part.grad is not None]
    assert not slopes
    loss(model).backward()
    direction = [part.grad / module_length(parts) for part in parts]

    def along(by: float) -> float:
        with torch.no_grad():
            for part, each in zip(parts, direction, strict=True):
                part += by * each
            value = loss(model).item()
            for part, each in zip(parts, direction, strict=True):
                part -= by * each
        return value

    slope = (along(1e-5) - along(-1e-5)) / 2e-5
    found = training_step(make(), SOURCE, LABELS).modules[name]
    assert found.gradient == pytest.approx(slope, rel=1e-3)


def module_length(parts: list[torch.nn.Parameter]) -> Tensor:
    return torch.stack([part.grad.square().sum() for part in parts]).sum().sqrt()


def test_adams_first_step_moves_each_number_with_a_gradient_by_the_learning_rate():
    model = make(tie="none")
    found = training_step(model, SOURCE, LABELS, 1e-3)
    inner = "encoder.0.feed_forward_residual"  # its shift and scale: every number has a gradient
    count = sum(p.numel() for p in model.get_submodule(inner).parameters())
    assert found.modules[inner].moved == pytest.approx(1e-3 * math.sqrt(count), rel=1e-3)
    rows = len(set(SOURCE))  # of the table only the rows that were read
    touched = math.sqrt(rows * model.config.d_model)
    assert found.modules["source_embedding"].moved == pytest.approx(1e-3 * touched, rel=1e-3)
    small = training_step(model, SOURCE, LABELS, 1e-4)
    assert small.modules[inner].moved == pytest.approx(found.modules[inner].moved / 10, rel=1e-3)


def test_it_is_of_a_copy_whatever_the_caller_runs_under():
    model = make().double().train().requires_grad_(requires_grad=False)
    before = copy.deepcopy(model.state_dict())
    plain = training_step(make(), SOURCE, LABELS)
    for context in (torch.inference_mode, torch.no_grad, torch.enable_grad):
        with context():
            found = training_step(model, SOURCE, LABELS)
        assert found.after == pytest.approx(plain.after, abs=1e-5)
    assert model.training
    assert hooks(model) == 0
    for name, parameter in model.named_parameters():
        assert parameter.grad is None
        assert not parameter.requires_grad
        assert torch.equal(parameter, before[name])


def test_heads_that_are_off_learn_nothing_and_say_nothing():
    off = [("decoder.0.cross_attention", 1), ("encoder.1.self_attention", 0)]
    found = training_step(make(), SOURCE, LABELS, off=off)
    wanted = training_step(without(make(), off), SOURCE, LABELS)
    assert found.before == pytest.approx(wanted.before, abs=1e-5)
    with pytest.raises(TraceError, match="no head 7"):
        training_step(make(), SOURCE, LABELS, off=[("decoder.0.cross_attention", 7)])


def test_a_document_has_it_where_answers_are_asked_for():
    plain = pages.traced()["traces"][0]
    assert plain["training"] is None
    document = contract.read(pages.traced(answers=True))
    (found,) = document["traces"]
    training = found["training"]
    assert training["before"] == pytest.approx([-x for x in found["output"]["log_probs"]], abs=1e-5)
    assert training["modules"].keys() == document["model"]["parameters"]["by_module"].keys()
    assert set(training) == set(Training._fields)


def test_a_large_model_is_not_stepped_and_it_is_said(monkeypatch):
    monkeypatch.setattr(trace_module, "LARGEST", 1000)
    one = trace(pages.translator(), "It was too wide.", answers=True)
    (found,) = contract.read(one.to_json())["traces"]
    assert found["training"] is None
    assert "a training step: the model's" in found["left_out"]


def test_a_table_that_is_shared_is_counted_once():
    model = make(tie="all")
    assert {"target_embedding", "output"}.isdisjoint(training_step(model, SOURCE, LABELS).modules)
