"""What torch refuses to write into half tensors, under a forced level and ``amp.initialize``; half probabilities."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional

from ampcompat import amp
from ampcompat.engine.session import process_state
from ampcompat.errors import AmpNotImplementedError
from ampcompat.launch.forced_levels.forced_level import forced, is_supported

pytestmark = pytest.mark.skipif(not is_supported(), reason="forced levels need torch 2.1")

LOW = {"O1": torch.float16, "O2": torch.float16, "O4": torch.bfloat16, "O5": torch.bfloat16}
#: Levels with the cast backend, for those that have one.
LEVELS = [("O1", "native"), ("O1", "patched"), ("O2", None), ("O4", "patched"), ("O5", None)]
MASK = torch.tensor([True, False, True])
AT = torch.tensor([0, 2])

#: Calls that write a number into ``x`` of shape (3,); each refuses -1e39 for both half dtypes.
NUMBERS = {
    "masked_fill": lambda x, value: x.masked_fill(MASK, value),
    "torch.masked_fill": lambda x, value: torch.masked_fill(x, MASK, value=value),
    "masked_fill_": lambda x, value: x.masked_fill_(MASK, value),
    "masked_fill of a tensor": lambda x, value: x.masked_fill(MASK, torch.tensor(value, dtype=torch.float64)),
    "index_fill": lambda x, value: x.index_fill(0, AT, value),
    "scatter": lambda x, value: x.scatter(0, AT, value),
    "fill_": lambda x, value: x.fill_(value),
    "fill_diagonal_": lambda x, value: x.view(1, 3).fill_diagonal_(value).view(3),
    "full_like": lambda x, value: torch.full_like(x, value),
    "new_full": lambda x, value: x.new_full((3,), value),
    "clamp": lambda x, value: x.clamp(min=value, max=-value),
    "clip_": lambda x, value: x.clip_(value, -value),
    "clamp_max": lambda x, value: x.clamp_max(value),
    "pad": lambda x, value: functional.pad(x[:2], (0, 1), value=value),
    "__setitem__": lambda x, value: assign(x, MASK, torch.tensor(value, dtype=torch.float64)),
}
#: Calls that write the two values ``source`` into ``x`` of shape (3,).
SOURCES = {
    "a mask": lambda x, source: assign(x, MASK, source),
    "an index": lambda x, source: assign(x, AT, source),
    "index_put_": lambda x, source: x.index_put_((AT,), source, accumulate=True),
    "index_add_": lambda x, source: x.index_add_(0, AT, source, alpha=2),
    "index_copy_": lambda x, source: x.index_copy_(0, AT, source),
    "index_reduce_": lambda x, source: x.index_reduce_(0, AT, source, "amax"),
    "scatter_": lambda x, source: x.scatter_(0, AT, src=source),
    "scatter_add_": lambda x, source: x.scatter_add_(0, AT, source),
    "scatter_reduce_": lambda x, source: x.scatter_reduce_(0, AT, source, "sum"),
    "masked_scatter_": lambda x, source: x.masked_scatter_(MASK, source),
    "put_": lambda x, source: x.put_(AT, source),
    "index_add": lambda x, source: torch.index_add(x, 0, AT, source),
    "masked_scatter": lambda x, source: x.masked_scatter(MASK, source),
}


def assign(x, index, value):
    x[index] = value
    return x


def train(level, model, loss, steps=3):
    """Return the losses of a few steps of SGD under a forced level, None for none, and what ``loss`` returned last."""
    losses = []
    with forced(level):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(steps):
            optimizer.zero_grad()
            value = loss(model)
            value.backward()
            optimizer.step()
            losses.append(float(value))
    return losses


@pytest.fixture(params=LEVELS, ids=lambda each: "-".join(filter(None, each)))
def level(request, monkeypatch):
    """A level with half; its backend is chosen as by ``run --backend``."""
    name, backend = request.param
    process_state.set_command_line(verbosity=0, **({"backend": backend} if backend else {}))
    return name


@pytest.fixture(params=[True, False], ids=["forced", "initialize"])
def low(level, request):
    """The level's half dtype, in a forced level whose session is open, or in a session of ``amp.initialize``."""
    with forced(level if request.param else None):
        model = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if not request.param:
            amp.initialize(model, optimizer, opt_level=level)
        model(torch.ones(1, 2)).sum().backward()
        yield LOW[level]


def test_numbers_out_of_the_range_of_half_become_its_largest_and_smallest(low):
    limits = torch.finfo(low)
    for name, write in NUMBERS.items():
        found, expected = (write(torch.zeros(3, dtype=dtype), -1e39) for dtype in (low, torch.float64))
        assert found.dtype is low, name
        assert torch.equal(found.double(), expected.clamp(limits.min, limits.max)), name


def test_numbers_that_torch_accepts_are_written_as_they_are(low):
    for name, write in NUMBERS.items():
        for value in (-math.inf, math.inf, math.nan, -3.5, 7, True):
            found, expected = (write(torch.zeros(3, dtype=dtype), value) for dtype in (low, torch.float64))
            assert torch.equal(found.double().nan_to_num(9.0), expected.nan_to_num(9.0)), (name, value)
    assert assign(torch.zeros(3, dtype=low), 0, torch.tensor(-1e39, dtype=torch.float64))[0] == -math.inf
    assert torch.zeros(2, dtype=low).new_full((2,), -1e39, dtype=torch.float64)[0] == -1e39
    with pytest.raises(RuntimeError):
        torch.zeros(3).masked_fill(MASK, -1e39)  # float32 has no such value either, at any level


@pytest.mark.filterwarnings("ignore:index_reduce")
def test_sources_of_another_dtype_are_cast_to_that_of_the_tensor(low):
    for name, write in SOURCES.items():
        for target, other in ((torch.float32, low), (low, torch.float32)):
            source = torch.tensor([1.25, 3.0], dtype=other, requires_grad=True)
            found = write(torch.ones(3, dtype=target), source)
            assert found.dtype is target, name
            expected = write(torch.ones(3, dtype=torch.float64), source.detach().double())
            assert torch.equal(found.double(), expected), name
            if found.requires_grad and name != "index_reduce_":  # torch has no such gradient
                found.sum().backward()
                assert source.grad.dtype is other and source.grad.abs().sum() > 0, name
    with pytest.raises(RuntimeError):
        torch.ones(3).index_add_(0, AT, torch.ones(2, dtype=torch.float64))  # no level makes float64


def test_compiled_code_accepts_them_too(low, compiler_forgets):
    def step(scores, values):
        values = values.clone()
        values[MASK] = scores.masked_fill(MASK, -1e39)[:2]
        return values

    scores = torch.ones(3, dtype=low)
    found = torch.compile(step, backend="eager", fullgraph=True)(scores, torch.zeros(3))
    assert torch.equal(found, step(scores, torch.zeros(3))) and found[0] == torch.finfo(low).min


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is")
def test_a_script_of_torchscript_compiles_beside_them(low):
    def limited(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return functional.pad(torch.clamp(x, -2.0, 2.0), [0, 1]).masked_fill(mask, 1.0)

    mask = torch.tensor([True, False, False, True])
    x = torch.full((3,), 5.0, dtype=low)
    for _ in range(2):
        assert torch.jit.script(limited)(x, mask).tolist() == [1.0, 2.0, 2.0, 1.0]
    assert x.masked_fill(MASK, -1e39)[0] == torch.finfo(low).min


@pytest.mark.parametrize("end", ["O0", "the end", "amp.initialize"])
def test_torch_refuses_them_at_o0_and_when_the_forced_level_has_ended(end):
    process_state.set_command_line(verbosity=0)
    model = nn.Linear(2, 1)
    with forced("O0" if end == "O0" else "O1"):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.ones(1, 2)).sum().backward()
        if end == "amp.initialize":
            amp.initialize(nn.Linear(2, 1), opt_level="O0", verbosity=0)
        elif end == "the end":
            forced_until = torch.zeros(3, dtype=torch.float16).masked_fill(MASK, -1e9)
            assert forced_until[0] == -65504
        if end != "the end":
            with pytest.raises(RuntimeError, match="without overflow"):
                torch.zeros(3, dtype=torch.float16).masked_fill(MASK, -1e9)
        del optimizer
    with pytest.raises(RuntimeError, match="without overflow"):
        torch.zeros(3, dtype=torch.float16).masked_fill(MASK, -1e9)
    with pytest.raises(RuntimeError, match="dtypes match"):
        assign(torch.zeros(3), MASK, torch.zeros(2, dtype=torch.float16))


def test_attention_with_large_masks_trains_as_in_float32(level):
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.query, self.key = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, inputs):
            scores = self.query(inputs) @ self.key(inputs).transpose(0, 1)
            hidden = torch.ones(3, 3, dtype=torch.bool).triu(1)
            return scores.masked_fill(hidden, -1e9).softmax(-1)

    inputs, found = torch.randn(3, 4), {}
    for each in (None, level):
        torch.manual_seed(0)
        found[each] = train(each, Attention(), lambda model: (model(inputs) @ inputs).float().pow(2).mean() / 64)
    assert found[level] == pytest.approx(found[None], rel=0.02)


@pytest.mark.parametrize("loss", ["functional", "module"])
def test_binary_cross_entropy_of_half_probabilities_is_computed_in_float32(level, loss, capsys):
    process_state.set_command_line(
        verbosity=1, **{k: v for k, v in process_state.command_line().items() if k == "backend"}
    )
    targets, inputs, dtypes = torch.tensor([[1.0], [0.0], [1.0]]), torch.randn(3, 4), []

    def from_probabilities(model):
        probabilities = torch.sigmoid(model(inputs))
        dtypes.append(probabilities.dtype)
        if loss == "module":
            return nn.BCELoss()(probabilities, targets) / 64
        return functional.binary_cross_entropy(probabilities, targets) / 64

    found = {}
    for each in (None, level):
        torch.manual_seed(0)
        found[each] = train(each, nn.Linear(4, 1), from_probabilities, steps=4)
    assert found[level] == pytest.approx(found[None], rel=0.02)
    casts = level in ("O1", "O4")
    assert dtypes[4:] == ([LOW[level]] if casts else [torch.float32]) + [torch.float32] * 3
    notices = [line for line in capsys.readouterr().out.splitlines() if "binary_cross_entropy" in line]
    assert len(notices) == casts and all(f"{__file__}:" in line for line in notices)
    with pytest.raises(AmpNotImplementedError):  # a script with Apex is refused, as by Apex
        amp.initialize(nn.Linear(1, 1), opt_level="O1", verbosity=0)
        functional.binary_cross_entropy(torch.zeros(1, dtype=torch.float16), torch.zeros(1))
