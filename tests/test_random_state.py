"""The state of random generators, on an accelerator of two devices that a machine without one pretends to have."""

import contextlib
import math
import pickle
import random
import types

import numpy
import pytest
import torch

from ampcompat import amp
from ampcompat.abtest.planned_run import PlannedRun
from ampcompat.abtest.running import in_process
from ampcompat.launch.forced_levels.forced_level import forced, is_supported
from ampcompat.support import random_state
from ampcompat.support.patching import PatchStack
from ampcompat.support.torch_compat import features


@pytest.fixture
def devices():
    """Return the generators of an accelerator with two devices, as ``torch.fake``."""
    generators = [torch.Generator(), torch.Generator()]

    def set_rng_state_all(states):
        for generator, state in zip(generators, states):
            generator.set_state(state)

    module = types.SimpleNamespace(
        is_initialized=lambda: True,
        get_rng_state_all=lambda: [each.get_state() for each in generators],
        set_rng_state_all=set_rng_state_all,
    )
    with PatchStack() as patches:
        patches.set(features, "available_devices", lambda: ("cpu", "fake"))
        patches.set(torch, "fake", module)
        yield generators


class Dropout(torch.nn.Module):
    """Dropout that draws from every device's generator, the CPU's included, as layers on these devices do."""

    def __init__(self, generators):
        super().__init__()
        self.generators = lambda: [torch.default_generator] + generators  # a copy of the layer has the same ones

    def forward(self, x):
        for generator in self.generators():
            x = x * (torch.rand(x.shape, generator=generator) > 0.2).to(x.dtype)
        return x


def numbers(generators):
    drawn = [torch.rand(3, generator=each).tolist() for each in [torch.default_generator] + generators]
    return drawn, random.random(), numpy.random.rand()


@pytest.mark.filterwarnings("ignore:pickle support for Storage:FutureWarning")  # torch 1.5
def test_what_was_drawn_is_drawn_again(devices):
    state = pickle.loads(pickle.dumps(random_state.capture()))
    first = numbers(devices)
    with random_state.restored(state):
        assert numbers(devices) == first
    second = numbers(devices)
    random_state.restore(state)
    assert [numbers(devices), numbers(devices)] == [first, second]


def test_an_accelerator_that_was_not_used_is_left_alone(devices):
    torch.fake.is_initialized = lambda: False
    state = random_state.capture()
    expected = [torch.rand(2, generator=each).tolist() for each in devices]
    random_state.restore(state)
    assert [torch.rand(2, generator=each).tolist() for each in devices] != expected


def test_a_module_that_has_one_device(devices):
    torch.fake = types.SimpleNamespace(get_rng_state=devices[0].get_state, set_rng_state=devices[0].set_state)
    with random_state.restored():
        drawn = torch.rand(2, generator=devices[0])
    assert torch.equal(torch.rand(2, generator=devices[0]), drawn)


def model_of(generators):
    torch.manual_seed(0)
    for generator in generators:
        generator.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), Dropout(generators), torch.nn.Linear(8, 1))
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def test_dropout_is_the_same_where_the_diagnosis_repeats_a_forward_pass(devices):
    """The overflow diagnosis repeats that of a skipped step."""

    def train(level):
        model, optimizer = amp.initialize(*model_of(devices), init_scale=2.0**10, verbosity=0)
        for step in range(12):
            optimizer.zero_grad()
            loss = model(torch.randn(8, 4)).float().pow(2).mean()
            with amp.scale_loss(loss * math.inf if step == 8 else loss, optimizer) as scaled_loss:
                scaled_loss.backward()
            optimizer.step()

    runs = []
    for diagnose in (True, False):
        options = {"verbosity": 0, "diagnose": diagnose, "memory": False}
        planned = PlannedRun("O2", [], opt_level="O2", options=options)
        runs.append(in_process.run_function(train, planned).run)
    assert runs[0].skipped and runs[0].loss == runs[1].loss


@pytest.mark.skipif(not is_supported(), reason="forced levels need torch 2.1")
def test_dropout_is_the_same_where_a_forced_level_repeats_the_beginning_of_a_closure(devices, level):
    def losses(context, hand):
        with context:
            model, optimizer = model_of(devices)
            if hand:
                amp.initialize(model, optimizer, opt_level=level, verbosity=0)

            def closure():
                optimizer.zero_grad()
                inputs = Dropout(devices)(torch.full((8, 4), random.random()))
                loss = model(inputs).float().pow(2).mean()
                with amp.scale_loss(loss, optimizer) if hand else contextlib.nullcontext(loss) as scaled_loss:
                    scaled_loss.backward()
                return loss

            random.seed(0)
            return [float(optimizer.step(closure)) for _ in range(3)]

    found = losses(forced(level), False)
    assert found == losses(contextlib.nullcontext(), True)
