"""A planted fault is named, and nothing in healthy runs: at every kind of level, with both cast backends."""

import contextlib
import warnings

import pairs
import pytest
import torch
from helpers.half_kernels import needs_float16
from pairs import Body, Net, compared, named
from torch.nn import functional as F

from ampcompat import amp

HALF = {"O1": torch.float16, "O2": torch.float16, "O4": torch.bfloat16}


def body(function, other=None):
    return lambda: Net(Body(function, other))


def in_half(x, weight):
    with amp.disable_casts():
        return torch.softmax((x * weight).half(), -1)


def wide(x):
    return torch.cat([x * x] * 8, 1)


def added_up(x):
    total = x[:, :1] * 0
    for part in x.split(1, 1):
        total = total + part
    return total


class Doubled(torch.autograd.Function):
    """The identity, with twice its gradient."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


class Stale(torch.nn.Module):
    """A linear layer that keeps the first cast of its weight in the compared run."""

    def __init__(self, level):
        super().__init__()
        self.linear, self.kept, self.dtype = torch.nn.Linear(pairs.WIDTH, pairs.WIDTH), None, HALF[level]

    def forward(self, x):
        if not pairs.state["compared"]:
            return self.linear(x)
        self.kept = self.linear.weight.detach().to(self.dtype) if self.kept is None else self.kept
        return F.linear(x.to(self.dtype), self.kept, self.linear.bias.to(self.dtype))


@contextlib.contextmanager
def wrong_tanh():
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that a kernel is replaced
        library.impl("tanh", lambda x: (2.02 * torch.sigmoid(2 * x.float()) - 1.01).to(x.dtype), "CPU")
    try:
        yield
    finally:
        del library  # now the kernel is torch's again


def tanh(x, weight):
    return torch.tanh(x * weight)


CASES = {
    "kernel": ("O2", body(tanh), ("tanh", "forward"), "its kernel or its arguments differ", wrong_tanh),
    "function": (
        "O2",
        body(lambda x, w: F.gelu(x * w), lambda x, w: x * w * torch.sigmoid(1.7 * x * w)),
        ("gelu", "forward"),
        "another computation replaces it: mul, sigmoid",
    ),
    "missing": ("O4", body(lambda x, w: x + tanh(x, w), tanh), ("add", "forward"), "it is missing"),
    "half": (
        "O1",
        body(lambda x, w: torch.softmax(x * w, -1), in_half),
        ("softmax", "forward"),
        "runs in float16 although the op table says float32",
    ),
    "reduction": (
        "O2",
        body(lambda x, w: w / (1 + wide(x).sum(1, keepdim=True)), lambda x, w: w / (1 + added_up(wide(x)))),
        ("sum", "forward"),
        "less precise than float16 explains",
    ),
    "stale": ("O1", lambda: Net(Stale("O1")), ("linear", "forward"), "such as a half copy of older weights"),
    "stale weights": ("O2", lambda: Net(Stale("O2")), ("linear", "forward"), "such as a half copy of older weights"),
    "gradient": (
        "O1",
        body(lambda x, w: tanh(x.clone(), w), lambda x, w: tanh(Doubled.apply(x), w)),
        ("Doubled", "backward"),
        "the baseline does not have it",
    ),
    "epsilon": (
        "O4",
        body(
            lambda x, w: F.layer_norm(x, (pairs.WIDTH,), w), lambda x, w: F.layer_norm(x, (pairs.WIDTH,), w, eps=1e-3)
        ),
        ("layer_norm", "forward"),
        "its kernel or its arguments differ",
    ),
    "no gradient": (
        "O2",
        body(lambda x, w: tanh(x, w) + x, lambda x, w: tanh(x, w) + x.detach()),
        ("add", "backward"),
        "it is missing",
    ),
}


@pytest.mark.parametrize("name", [pytest.param(name, marks=needs_float16 if name == "half" else ()) for name in CASES])
def test_the_planted_op_is_named(name, monkeypatch):
    level, make, wanted, told, *plant = CASES[name]
    found = compared(make, level, monkeypatch, *plant)
    assert named(found) == ("body",) + wanted, found["first"]
    assert told in found["first"]["told"]
    assert found["first"]["line"].startswith(__file__ if name != "no gradient" else "")
    assert found["unchecked"] == found["left_out"] == 0 and found["checked"] > 5


class Recurrent(torch.nn.Module):
    """Cells in a loop, whose gradients are added up in another order where weights are cast."""

    def __init__(self):
        super().__init__()
        self.cell, self.norm = torch.nn.GRUCell(8, pairs.WIDTH), torch.nn.BatchNorm1d(pairs.WIDTH)
        self.head = torch.nn.Linear(pairs.WIDTH, 4)

    def forward(self, x):
        state = x.new_zeros(len(x), pairs.WIDTH)
        for _ in range(3):
            state = self.cell(x, state)
        return self.head(F.relu(F.dropout(self.norm(state), 0.1), inplace=True))


def masked(x, weight):
    """Scores with the smallest number of the dtype in places that do not count."""
    scores = (x * weight) @ x.t()
    mask = torch.ones(len(x), len(x), dtype=torch.bool).triu(1)
    return torch.softmax(scores.masked_fill(mask, torch.finfo(scores.dtype).min), -1) @ x


@pytest.mark.parametrize(
    "level, backend, make, passes",
    (
        ("O1", "native", Recurrent, 2),
        ("O1", "patched", body(masked), 1),
        ("O2", None, Recurrent, 2),
        ("O3", None, body(masked), 2),
        ("O4", "patched", Recurrent, 1),
        ("O4", "native", body(masked), 1),
        ("O5", None, Recurrent, 1),
    ),
)
def test_nothing_is_claimed_in_healthy_runs(level, backend, make, passes, monkeypatch):
    found = compared(make, level, monkeypatch, backend=backend, passes=passes)
    assert found["first"] is None, found["first"]
    assert found["unchecked"] == 0
    assert all(0 < each["introduced"] < 2 for each in found["largest"]) and len(found["largest"]) == 10


def test_other_batch_sizes_part_the_steps_and_are_no_fault(monkeypatch):
    found = compared(body(tanh), "O2", monkeypatch, batch=lambda: 8 if pairs.state["compared"] else 16)
    assert found["first"] is None
    assert found["parted"]["told"] == "randn has 8x8 where the baseline has 16x8"


def test_an_operation_that_only_one_has_parts_the_steps(monkeypatch):
    unused = body(tanh, lambda x, w: (torch.exp(w), tanh(x, w))[1])
    found = compared(unused, "O1", monkeypatch)
    assert found["first"] is None
    parted = found["parted"]
    assert (parted["module"], parted["op"], parted["told"]) == ("body", "exp", "the baseline does not have exp")


@pytest.mark.parametrize("level", ("O1", "O2"))
def test_a_diagnosis_that_the_script_asks_for_is_no_part_of_the_step(level, monkeypatch):
    found, with_diagnosis = (compared(Recurrent, level, monkeypatch, diagnose=each) for each in (False, True))
    assert with_diagnosis["parted"] is None and with_diagnosis == found


def test_an_overflow_that_reaches_the_loss_is_a_difference(monkeypatch):
    found = compared(body(lambda x, w: (x * w * 1e4).pow(2) * 1e-9), "O3", monkeypatch)
    assert named(found) == ("body", "pow", "forward")
    assert found["first"]["introduced"] == float("inf")


def test_operations_beyond_the_limit_are_counted(monkeypatch):
    found = compared(body(tanh), "O2", monkeypatch, limit=10000)
    assert found["first"] is None and found["left_out"] > 0 and found["unchecked"] > 0


@needs_float16
def test_the_same_weights_and_random_numbers_begin_the_step(monkeypatch):
    """Weights trained at O3 are far from the float32 ones after a step; the step begins with those."""
    found = compared(body(lambda x, w: F.dropout(x * w, 0.5)), "O3", monkeypatch)
    inherited = {(each["module"], each["op"]): each["inherited"] for each in found["largest"]}
    assert found["first"] is None and inherited["first", "linear"] < 1.0


def test_batches_come_from_a_data_loader_which_names_regions_for_the_profiler(monkeypatch):
    loader = torch.utils.data.DataLoader(torch.zeros(16), 16)
    found = compared(body(tanh), "O2", monkeypatch, batch=lambda: len(next(iter(loader))))
    assert found["first"] is found["parted"] is None and found["checked"] > 5
