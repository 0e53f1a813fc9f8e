"""What is recorded of a step: calls by module, their dtypes at a level, statistics; and that nothing stays."""

import math
import os
import re
import sys
import threading

import pytest
import torch
from helpers import half_kernels
from trainings import Net, observe, record, train

import ampcompat
from ampcompat.diagnostics.forecast import prediction
from ampcompat.diagnostics.forecast.level_dtypes import StepDtypes
from ampcompat.diagnostics.forecast.op_calls import OpCalls
from ampcompat.observers.exponents import SAMPLE, TensorSamples
from ampcompat.observers.optimizer_twin import OptimizerTwin
from ampcompat.support.torch_compat import step_hooks


def calls_of(function, models=()):
    calls = OpCalls(lambda index, tensor: None, lambda index, values: None)
    calls.add_models(models)
    with calls:
        calls.begin()
        function(calls)
        return calls.end()


def test_calls_are_recorded_by_module_call_and_number():
    model = Net(lambda x: torch.relu(x).tanh() + 1)
    step = calls_of(lambda calls: (model(torch.ones(2, 6)), model(torch.ones(2, 6))), [model])
    told = [(each.op, each.place.module, each.module_call) for each in step.calls if each.place.model is not None]
    once = [("linear", "embed"), ("relu", "body"), ("tanh", "body"), ("add", "body"), ("linear", "head")]
    assert told == [(op, module, number) for number in (0, 1) for op, module in once]


def test_views_are_the_values_of_their_input_and_losses_are_named():
    model = Net(lambda x: torch.relu(x.view(-1, 4).t().reshape(2, 16)))

    def run(calls):
        calls.add_loss(model(torch.ones(2, 6)).sum())

    step = calls_of(run, [model])
    relu = next(each for each in step.calls if each.op == "relu")
    linear = next(each for each in step.calls if each.op == "linear")
    assert relu.inputs == linear.outputs
    assert step.losses == [step.calls[-1].outputs[0]] and step.calls[-1].op == "sum"


def test_a_change_in_place_is_a_new_value():
    x = torch.ones(3, requires_grad=True)
    step = calls_of(lambda calls: (x * 2).add_(1).mul_(3))
    assert [each.inputs for each in step.calls[1:]] == [each.outputs for each in step.calls[:2]]


def test_calls_within_attention_belong_to_its_module():
    model = torch.nn.MultiheadAttention(8, 2)
    step = calls_of(lambda calls: model(*[torch.ones(3, 1, 8)] * 3), [model])
    assert {"linear", "baddbmm", "softmax", "bmm"} & {each.op for each in step.calls} >= {"linear", "bmm"}


def test_an_argument_that_another_hook_looks_at_is_an_argument_all_the_same():
    model = Net()
    model.register_forward_pre_hook(lambda module, args: args[0].dtype and None)
    data = torch.ones(2, 6)
    step = calls_of(lambda calls: model(data), [model])
    assert step.values[step.calls[0].inputs[0]].place.model is None


def test_a_forked_process_records_nothing():
    calls = OpCalls(lambda index, tensor: None, lambda index, values: None)
    with calls:
        calls.begin()
        calls._process = os.getppid()
        torch.ones(3) + 1
        assert calls.end().calls == []


def test_statistics_are_those_of_float64(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    tensors = {
        "small": torch.randn(300, generator=generator) * 1e-6,
        "large": torch.randn(SAMPLE * 8, generator=generator) * 1e5,
        "with zeros": torch.tensor([0.0, -3.0, 0.5]),
        "half": torch.tensor([1.0, 2.0], dtype=torch.float16),
    }
    samples = TensorSamples()
    for name, tensor in tensors.items():
        samples.add(name, tensor)
    for name, stats in samples.read():
        values = tensors[name].double()
        assert (stats.minimum, stats.maximum) == (values.min().item(), values.max().item())
        sample = values[:: max(1, len(values) // SAMPLE)]
        assert stats.rms == pytest.approx(sample.pow(2).mean().sqrt().item())
        below = sample.abs()[sample != 0]
        weights = below**2
        expected = (weights[below < 2.0**-20].sum() / weights.sum()).item()
        assert stats.share_below(-20, power=2) == pytest.approx(expected, abs=0.05)
        assert stats.share_below(-20) == pytest.approx((below < 2.0**-20).double().mean().item(), abs=1e-9)
        assert stats.zeros == (sample == 0).sum()


def test_statistics_of_infinite_values_say_so():
    samples = TensorSamples()
    samples.add("inf", torch.tensor([1.0, math.inf]))
    samples.add("nan", torch.tensor([1.0, math.nan]))
    samples.add("integers", torch.tensor([1, 2]))
    found = dict(samples.read())
    assert found["inf"].maximum == math.inf and math.isnan(found["nan"].largest) and "integers" not in found
    assert found["inf"].rms == 1.0 and samples.read() == []


class Outer(torch.optim.SGD):
    def __init__(self, params):
        super().__init__(params, lr=0.1)
        self.inner = torch.optim.SGD(self.param_groups[0]["params"], lr=0.1)

    def step(self, closure=None):
        self.inner.step()


@pytest.mark.skipif(not step_hooks.exist(), reason="this torch calls no hooks at the steps of all optimizers")
def test_no_hook_of_the_script_runs_at_the_step_of_a_copy():
    param = torch.nn.Parameter(torch.ones(4))
    param.grad = torch.ones(4)
    twin, calls = OptimizerTwin(Outer([param]), torch.float64), []
    module = sys.modules[torch.optim.Optimizer.__module__]
    hook = module.register_optimizer_step_pre_hook(lambda optimizer, args, kwargs: calls.append(optimizer))
    twin.step()
    hook.remove()
    assert calls == [] and torch.equal(twin.pairs[0][1], torch.full((4,), 0.9, dtype=torch.float64))


class NoHalf(torch.optim.SGD):
    """Steps on float32 params only."""

    def step(self, closure=None):
        """Step."""
        if self.param_groups[0]["params"][0].dtype is torch.float16:
            raise NotImplementedError
        return super().step(closure)


class Locked(torch.optim.SGD):
    """Holds what cannot be copied."""

    def __init__(self, params, lr):
        super().__init__(params, lr)
        self.lock = threading.Lock()


@pytest.mark.parametrize("kind, problem", [(NoHalf, "NotImplementedError"), (Locked, "cannot pickle|can't pickle")])
def test_an_optimizer_that_cannot_step_in_half_is_told(kind, problem):
    model = Net()
    events, _ = record(lambda: train(model, optimizer=kind(model.parameters(), lr=0.05)))
    (found,) = [event["forecast"]["details"]["problems"] for event in events if "forecast" in event]
    assert list(found) == [kind.__name__] and re.match(problem, found[kind.__name__])


class Casting(torch.nn.Module):
    """A norm in float32 that casts back, as many language models have it."""

    def forward(self, x):
        dtype = x.dtype
        y = x.to(torch.float32)
        return (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)).to(dtype)


class Recurrent(torch.nn.Module):
    """A GRU, whose state torch makes in the dtype of its input."""

    def __init__(self):
        super().__init__()
        self.cell = torch.nn.GRU(16, 16)

    def forward(self, x):
        return self.cell(x.unsqueeze(0))[0].squeeze(0)


NETWORKS = {
    "linear": lambda: Net(),
    "norms": lambda: Net(torch.nn.Sequential(torch.nn.LayerNorm(16), torch.nn.BatchNorm1d(16), torch.nn.GELU())),
    "cast back": lambda: Net(Casting()),
    "recurrent": lambda: Net(Recurrent()),
    "softmax": lambda: Net(lambda x: torch.softmax(x, -1) * x.exp() + x.sum(-1, keepdim=True)),
    "normalize": lambda: Net(lambda x: torch.nn.functional.normalize(x, dim=-1)),
}
#: (level, network) whose functions torch 2.1 cannot compute in float16 on a CPU; torch 2.2 lacks norms.
WITHOUT_KERNELS = {("O2", "softmax"), ("O3", "softmax"), ("O3", "norms")}


@pytest.mark.parametrize("name", NETWORKS)
def test_foreseen_dtypes_are_those_of_the_level(name, level, monkeypatch):
    """The outputs of all modules at the level, against what the record of the float32 run says."""
    if (level, name) in WITHOUT_KERNELS and not half_kernels.trains_in(torch.float16):
        pytest.skip("this torch lacks norms or softmax in float16 on a CPU")
    observed = observe(NETWORKS[name](), monkeypatch)
    step = observed.steps[-1].record
    foreseen = StepDtypes(step, prediction.make_level(observed, level))
    last = {call.place.module: foreseen.stored[call.outputs[0]] for call in step.calls if call.place.model is not None}
    model, found = NETWORKS[name](), {}
    for module_name, module in model.named_modules():
        module.register_forward_hook(
            lambda module, args, output, key=module_name: found.update(
                {key: (output[0] if isinstance(output, tuple) else output).dtype}
            )
        )
    with ampcompat.session(level, verbosity=0):
        train(model, steps=1)
    assert {key: found[key] for key in last} == last and foreseen.error is None


@pytest.mark.parametrize("level", ("O2", "O3"))
def test_foreseen_dtypes_of_kept_layers(level, monkeypatch):
    observed = observe(Net(), monkeypatch, keep_fp32=["embed"])
    step = observed.steps[-1].record
    made = prediction.make_level(observed, level)
    foreseen = StepDtypes(step, made)
    seen = {call.place.module: set(dtypes) for call, dtypes in zip(step.calls, foreseen.seen) if call.op == "linear"}
    assert made.kept == ("embed",)
    assert seen == {"embed": {torch.float32}, "head": {torch.float16}}


def test_nothing_stays_of_a_forecast():
    model = Net()
    record(lambda: train(model))
    assert torch.overrides._get_current_function_mode_stack() == []
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    hooks = torch.nn.modules.module
    assert not hooks._global_forward_hooks and not hooks._global_forward_pre_hooks
    assert all(not param._backward_hooks for param in model.parameters())


def test_the_training_is_the_same_as_without_a_forecast():
    found = []
    for watch in (None, "ampcompat.diagnostics.forecast.forecast_observer"):
        torch.manual_seed(0)
        model = Net(torch.nn.Dropout(0.5))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
        record(lambda model=model, optimizer=optimizer: train(model, optimizer=optimizer), watch=watch)
        found.append([param.detach().clone() for param in model.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*found))


def test_between_recorded_steps_nothing_is_read_on_the_host(monkeypatch):
    reads = []
    original = TensorSamples.read
    monkeypatch.setattr(TensorSamples, "read", lambda samples: reads.append(1) or original(samples))
    record(lambda: train(Net(), steps=50), steps=50)
    assert len(reads) <= 6
