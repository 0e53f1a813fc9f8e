"""Calls of the operators of torch's database: by their name at the time of the call, in one dtype or another."""

import functools
import itertools
import random
import warnings

import numpy
import torch


@functools.lru_cache(maxsize=None)
def _namespaces():
    """Return where functions of the database are found by name, so that a call goes through what has replaced them."""
    return {
        "": torch,
        "nn.functional": torch.nn.functional,
        "linalg": torch.linalg,
        "special": torch.special,
        "fft": torch.fft,
        "sparse": torch.sparse,
        "masked": torch.masked,
        "Tensor": torch.Tensor,
        "_VF": torch._VF,
    }


def seed():
    """Seed every source of random numbers that operators and samples draw from."""
    torch.default_generator.manual_seed(0)
    numpy.random.seed(0)
    random.seed(0)


def places():
    """Return {function: (owner, name)} of the public functions of torch. Called before anything replaces them."""
    found = {}
    for owner in _namespaces().values():
        for name in dir(owner):
            function = getattr(owner, name, None)
            if callable(function) and not isinstance(function, type):
                try:
                    found.setdefault(function, (owner, name))
                except TypeError:  # not hashable
                    continue
    return found


class Operator:
    """One entry of the database, as a function that is looked up at each call."""

    def __init__(self, info, known_places):
        self.info = info
        self.name = info.name + ("." + info.variant_test_name if info.variant_test_name else "")
        self._place = self._named_place() or known_places.get(info.op)

    def _named_place(self):
        prefix, _, name = self.info.name.rpartition(".")
        owner = _namespaces().get(prefix)
        return (owner, name) if owner is not None and getattr(owner, name, None) is self.info.op else None

    @property
    def is_uninitialized(self):
        """Whether its results are whatever the memory holds."""
        return "empty" in self.info.name

    def samples(self, count):
        """Return the first samples with float32 inputs."""
        seed()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the functions that make samples
            made = self.info.sample_inputs("cpu", torch.float32, requires_grad=self.info.supports_autograd)
            return list(itertools.islice(made, count))

    def called(self, sample):
        """Call the operator on a copy of a sample; return the ``Result``."""
        inputs, sample = [], sample.transform(_copied)
        function = getattr(*self._place) if self._place else self.info.op
        seed()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                output = function(sample.input, *sample.args, **sample.kwargs)
                processed = sample.output_process_fn_grad(output)
                tensors = tensors_in([sample.input, sample.args, sample.kwargs], [])
                inputs = [each for each in tensors if each.requires_grad and each.is_leaf]
                gradients = _gradients(tensors_in(processed, []), inputs)
            except Exception as error:
                return Result(error=f"{type(error).__name__}: {error}")
        dtypes = [each.dtype for each in tensors_in(output, [])]
        values = [_dense(each) for each in tensors_in(processed, [])]
        return Result(dtypes, values, gradients, {str(each.message) for each in caught})


class Result:
    """What a call gave: an error, or dtypes, values and gradients of the inputs that require one."""

    def __init__(self, dtypes=(), values=(), gradients=(), warned=frozenset(), error=None):
        self.dtypes, self.values, self.gradients, self.warned, self.error = dtypes, values, gradients, warned, error


def converted(sample, dtype):
    """Return the sample with its float32 and half tensors in another dtype."""

    def convert(value):
        if not isinstance(value, torch.Tensor) or value.dtype not in (torch.float32, torch.float16, torch.bfloat16):
            return value
        return value.detach().to(dtype).requires_grad_(value.requires_grad)

    return sample.transform(convert)


def widened(sample):
    """Return the sample in float64, with the same values."""
    wide = {torch.float16: torch.float64, torch.bfloat16: torch.float64, torch.float32: torch.float64}
    wide[torch.complex64] = torch.complex128

    def widen(value):
        if isinstance(value, torch.dtype):
            return wide.get(value, value)
        return value.detach().to(wide.get(value.dtype, value.dtype)).requires_grad_(value.requires_grad)

    return sample.transform(widen)


def tensors_in(value, found):
    """Append the tensors within nested lists, tuples and dicts to ``found``; return it."""
    if isinstance(value, torch.Tensor):
        found.append(value)
    elif isinstance(value, (list, tuple)):
        for item in value:
            tensors_in(item, found)
    elif isinstance(value, dict):
        tensors_in(list(value.values()), found)
    return found


def _copied(value):
    if isinstance(value, torch.Tensor):
        return value.detach().clone().requires_grad_(value.requires_grad)
    return value


def _gradients(outputs, inputs):
    """Return the gradients of the inputs, None for those that do not take part."""
    outputs = [each for each in outputs if each.requires_grad]
    if not outputs or not inputs:
        return []
    weights = [torch.linspace(0.5, 1.5, each.numel(), dtype=torch.float64).reshape(each.shape) for each in outputs]
    weights = [weight.to(each.dtype) for weight, each in zip(weights, outputs)]
    found = torch.autograd.grad(outputs, inputs, weights, allow_unused=True)
    return [each if each is None else _dense(each) for each in found]


def _dense(value):
    return (value.to_dense() if value.layout is not torch.strided else value).detach()
