"""One training step with every module of torch's database, with amp and without."""

import functools
import os
import warnings

import torch
from databases import load
from operator_calls import seed, tensors_in

from ampcompat import amp
from ampcompat.support.containers import map_items

SAMPLES = int(os.environ.get("TORCH_DATABASE_SAMPLES", "3"))


class Shifted(torch.nn.Module):
    """A param of zeros that is added to the first floating input, so that there is a gradient of every input.

    Args:
        module: what is called with the inputs; None returns them.
    """

    def __init__(self, module, inputs):
        super().__init__()
        self.module = module
        first = [each for each in tensors_in(inputs, []) if each.is_floating_point()][:1]
        self.shift = torch.nn.Parameter(torch.zeros(first[0].shape if first else ()))

    def forward(self, *args, **kwargs):
        is_first = iter([True])

        def shifted(value):
            if isinstance(value, torch.Tensor):
                return value + self.shift if value.is_floating_point() and next(is_first, False) else value
            return map_items(shifted, value) if isinstance(value, (tuple, list, dict)) else value

        args, kwargs = shifted(args), shifted(kwargs)
        return (args, kwargs) if self.module is None else self.module(*args, **kwargs)


class Configuration:
    """One way to construct and to call a module: an entry of the database with one of its inputs.

    Args:
        is_outside: the module is called with what the model returns, as a script calls its loss.
    """

    def __init__(self, info, sample, is_outside):
        self.info, self.is_outside = info, is_outside
        self._constructor, self._inputs = sample.constructor_input, sample.forward_input
        self.name = ", ".join([info.name] + [sample.desc] * bool(sample.desc) + ["outside the model"] * is_outside)

    def inputs(self, dtype):
        """Return (args, kwargs), new tensors each time."""
        return _converted((tuple(self._inputs.args), dict(self._inputs.kwargs)), dtype)

    def network(self, dtype):
        """Return a new model, the same each time, and what is to be called: the model, maybe with the module behind."""
        seed()
        module = self.info.module_cls(*self._constructor.args, **self._constructor.kwargs).train()
        args, kwargs = self.inputs(torch.float32)
        if isinstance(module, torch.nn.modules.lazy.LazyModuleMixin):
            module(*args, **kwargs)
        module.to(dtype)
        if not self.is_outside:
            return (Shifted(module, (args, kwargs)),) * 2
        model = Shifted(None, (args, kwargs))

        def call(*args, **kwargs):
            args, kwargs = model(*args, **kwargs)
            return module(*args, **kwargs)

        return model, call


def _converted(value, dtype):
    if isinstance(value, torch.Tensor):
        return value.detach().to(dtype if value.is_floating_point() else value.dtype, copy=True)
    return map_items(lambda each: _converted(each, dtype), value) if isinstance(value, (tuple, list, dict)) else value


@functools.lru_cache(maxsize=None)
def configurations():
    """Return a few configurations of each module of the database, evenly chosen; losses in and outside the model."""
    found = []
    for info in load("common_modules", "module_db"):
        seed()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the functions that make samples
            samples = list(info.module_inputs_func(info, "cpu", torch.float32, requires_grad=False, training=True))
        count = min(SAMPLES, len(samples))
        for sample in [samples[index * len(samples) // count] for index in range(count)]:
            found.append(Configuration(info, sample, False))
            if info.name.endswith("Loss") and info.name != "nn.LinearCrossEntropyLoss":  # which has params
                found.append(Configuration(info, sample, True))
    return found


class Step:
    """What a training step gave: an error, or outputs, gradients, the dtypes of running statistics, and warnings."""

    def __init__(self):
        self.error, self.outputs, self.gradients, self.statistics, self.warned = None, [], [], {}, set()


def step(configuration, prepare, dtype=torch.float32):
    """Train one step.

    Args:
        prepare: a function (model, optimizer, inputs) that returns a function (loss), which goes backward and returns
            the gradients of the params.
        dtype: that of the model and its inputs.
    """
    found = Step()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            _train(configuration, prepare, dtype, found)
        except Exception as error:
            found.error = f"{type(error).__name__}: {error}"
    # torch warns once in a process where oneDNN has no LSTM of some kind, whichever call comes first.
    found.warned = {str(each.message) for each in caught if "oneDNN" not in str(each.message)}
    return found


def _train(configuration, prepare, dtype, found):
    model, call = configuration.network(dtype)
    args, kwargs = configuration.inputs(dtype)
    optimizer = torch.optim.SGD(model.to(dtype).parameters(), lr=0.125)
    backward = prepare(model, optimizer, (args, kwargs))
    seed()
    outputs = [each for each in tensors_in(call(*args, **kwargs), []) if each.is_floating_point()]
    found.gradients = [each if each is None else each.detach().clone() for each in backward(_loss(outputs))]
    optimizer.step()
    found.outputs = [each.detach() for each in outputs]
    found.statistics = {name: each.dtype for name, each in model.named_buffers() if "running" in name}


def _loss(outputs):
    """Return a sum of all elements, each times a number that bfloat16 holds: the gradients of the outputs are exact."""
    wide = [each if each.dtype is torch.float64 else each.float() for each in outputs]
    weights = [(0.5 + torch.arange(each.numel()) % 7 / 8).reshape(each.shape) for each in wide]
    return sum((each * weight.to(each.dtype)).sum() for each, weight in zip(wide, weights))


def plain(model, optimizer, inputs):
    """Train without amp."""

    def backward(loss):
        loss.backward()
        return [each.grad for each in model.parameters()]

    return backward


def rounded(low):
    """Return a function that prepares training without amp, on weights and inputs that are rounded to half."""

    def prepare(model, optimizer, inputs):
        with torch.no_grad():
            for each in list(model.parameters()) + tensors_in(inputs, []):
                if each.is_floating_point():
                    each.copy_(each.to(low))
        return plain(model, optimizer, inputs)

    return prepare


def at_level(level, **options):
    """Return a function that prepares training at a level."""

    def prepare(model, optimizer, inputs):
        amp.initialize(model, optimizer, opt_level=level, verbosity=0, **options)

        def backward(loss):
            with amp.scale_loss(loss, optimizer) as scaled:
                scaled.backward()
            return [each.grad for each in amp.master_params(optimizer)]

        return backward

    return prepare
