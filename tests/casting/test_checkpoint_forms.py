"""Every way to call torch's checkpoint recomputes under the casts of the call; a closed backend leaves it as it was."""

import functools
import inspect
import logging
import warnings

import pytest
import torch
import torch.nn.functional as F
from opened import SETTINGS, each_setting, opened
from torch.utils import checkpoint as checkpoints
from torch.utils.checkpoint import checkpoint, checkpoint_sequential  # by name and before any backend: as in user code

SIGNATURE = inspect.signature(checkpoint)
if "context_fn" not in SIGNATURE.parameters:
    pytest.skip(f"torch {torch.__version__} has no checkpoint with context_fn", allow_module_level=True)

HAS_DECORATOR = SIGNATURE.parameters["function"].default is None  # torch >= 2.15
MADE_BEFORE = functools.partial(checkpoint, use_reentrant=False)


class Block(torch.nn.Module):
    """Two layers; notes the dtype of its first product at each call."""

    def __init__(self, high):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = torch.nn.Linear(4, 6).to(high), torch.nn.Linear(6, 4).to(high)
        self.dtypes = []

    def forward(self, x):
        product = F.linear(x, self.first.weight, self.first.bias)
        self.dtypes.append(product.dtype)
        return self.second(torch.tanh(product))

    def gradients(self, backend, call, x):
        """Return the gradients of a loss of what ``call(block, x)`` returns, with copies of weights made anew."""
        backend.clear_cache()
        return torch.autograd.grad(call(self, x).float().pow(2).sum(), [x] + list(self.parameters()))


def nested(block, x):
    return checkpoint(lambda x: checkpoint(block, x, use_reentrant=False), x, use_reentrant=False)


def selective(block, x):
    def contexts():
        products = [torch.ops.aten.addmm.default, torch.ops.aten.mm.default]
        return checkpoints.create_selective_checkpoint_contexts(products)

    return checkpoint(block, x, use_reentrant=False, context_fn=contexts)


def debugging(block, x):
    with checkpoints.set_checkpoint_debug_enabled(True):
        return checkpoint(block, x, use_reentrant=False)


def decorated(block, x):
    return DECORATED[0](block, x)


WAYS = {
    "keywords": lambda block, x: checkpoint(block, x=x, use_reentrant=False),
    "attribute": lambda block, x: checkpoints.checkpoint(block, x, use_reentrant=False),
    "made before": lambda block, x: MADE_BEFORE(block, x),
    "nested": nested,
    "context_fn": lambda block, x: checkpoint(block, x, use_reentrant=False, context_fn=checkpoints.noop_context_fn),
    "selective": selective,
    "debug": lambda block, x: checkpoint(block, x, use_reentrant=False, debug=True),
    "debugging": debugging,
    "sequential": lambda block, x: checkpoint_sequential([block, torch.nn.Identity()], 2, x, use_reentrant=False),
}
if not hasattr(checkpoints, "create_selective_checkpoint_contexts"):  # torch < 2.4
    del WAYS["selective"]
if not hasattr(checkpoints, "set_checkpoint_debug_enabled"):
    del WAYS["debugging"]
if HAS_DECORATOR:
    DECORATED = [checkpoint(use_reentrant=reentrant)(lambda block, x: block(x)) for reentrant in (False, True)]
    WAYS["decorated before"] = decorated
    WAYS["decorated meanwhile"] = lambda block, x: checkpoint(use_reentrant=False)(block)(x)

#: Each form with one setting; together they cover all settings.
PAIRED = [(SETTINGS[index % len(SETTINGS)], way) for index, way in enumerate(WAYS)]
PAIRED += [(SETTINGS[(index + len(SETTINGS) // 2) % len(SETTINGS)], way) for index, way in enumerate(WAYS)]


@pytest.mark.parametrize("setting, way", PAIRED, ids=["{}-{}-{}".format(way, *setting) for setting, way in PAIRED])
def test_each_way_recomputes_in_the_dtypes_of_the_call(setting, way, monkeypatch):
    monkeypatch.setattr(logging.getLogger("LoggingTensor"), "propagate", False)  # logs what no handler can format
    block, x = Block(setting.high), torch.randn(5, 4, dtype=setting.high, requires_grad=True)
    with opened(setting) as backend:
        wanted = block.gradients(backend, lambda block, x: block(x), x)
        del block.dtypes[:]
        found = block.gradients(backend, WAYS[way], x)
    assert set(block.dtypes) == {setting.low}
    assert len(block.dtypes) >= 2
    assert all(torch.equal(one, other) for one, other in zip(found, wanted))


@pytest.mark.skipif(not HAS_DECORATOR, reason="this torch's checkpoint is not a decorator")
@each_setting
def test_a_reentrant_decorator_recomputes_in_the_dtypes_of_the_call(setting):
    block, x = Block(setting.high), torch.randn(5, 4, dtype=setting.high, requires_grad=True)
    with opened(setting):
        DECORATED[1](block, x).float().pow(2).sum().backward()
    assert block.dtypes == [setting.low] * 2


@each_setting
def test_checkpoint_is_as_it_was_after_the_backend_is_closed(setting):
    plain = inspect.unwrap(checkpoint)
    before = (plain.__code__, plain.__defaults__, dict(plain.__kwdefaults__), dict(vars(plain)))
    block, x = Block(setting.high), torch.randn(5, 4, dtype=setting.high, requires_grad=True)
    with opened(setting) as backend:
        assert inspect.signature(checkpoint) == SIGNATURE
        assert inspect.getsource(checkpoint).startswith("@torch._disable_dynamo")
        assert checkpoint is checkpoints.checkpoint
        with backend.paused():
            loss = checkpoint(block, x, use_reentrant=False).pow(2).sum()
    assert (plain.__code__, plain.__defaults__, dict(plain.__kwdefaults__), dict(vars(plain))) == before
    loss.backward()
    checkpoint(block, x, use_reentrant=False).pow(2).sum().backward()
    assert block.dtypes == [setting.high] * 4


def places_of_warnings(x):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        checkpoint(torch.tanh, x)
    return [(str(warning.message)[:40], warning.filename, warning.lineno) for warning in caught]


@each_setting
@pytest.mark.parametrize("requires_grad", [True, False])
def test_warnings_of_checkpoint_name_the_line_that_they_name_without_a_backend(setting, requires_grad):
    x = torch.ones(2, dtype=setting.high, requires_grad=requires_grad)
    expected = places_of_warnings(x)
    with opened(setting):
        assert places_of_warnings(x) == expected


@each_setting
def test_errors_of_checkpoint_are_torchs_own(setting):
    with opened(setting):
        with pytest.raises(ValueError, match="determinism_check should be one of"):
            checkpoint(torch.tanh, torch.ones(1, requires_grad=True), use_reentrant=False, determinism_check="no such")
        with pytest.raises(ZeroDivisionError):
            checkpoint(lambda x: 1 / 0, torch.ones(1, requires_grad=True), use_reentrant=False)
        with pytest.raises(TypeError):
            checkpoint(None, torch.ones(1), use_reentrant=False)
