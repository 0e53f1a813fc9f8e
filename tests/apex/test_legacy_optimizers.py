"""The optimizers from before 2019: formula in float64, arguments of step; which of them FP16_Optimizer wraps."""

import copy
import inspect
import io
import math

import pytest
import torch
from helpers.half_kernels import dtype_params

from ampcompat.apex import optimizers as apex_optimizers
from ampcompat.apex.contrib import optimizers
from ampcompat.apex.contrib.optimizers import FP16_Optimizer

STEPS = 3
each_half = pytest.mark.parametrize("dtype", dtype_params(torch.float16, torch.bfloat16))


def values(step, shapes=((3, 2), (4,))):
    generator = torch.Generator().manual_seed(step)
    return [3 * torch.randn(shape, generator=generator) for shape in shapes]


def new_params(dtype=torch.float32):
    return [torch.nn.Parameter(value.to(dtype)) for value in values(100)]


class Reference:
    """One group in float64, tensor by tensor, as the paper's efficient order has it."""

    def __init__(self, params, lr=0.1, betas=(0.9, 0.999), eps=1e-3, decay=0.1, inside=False, corrects=True, limit=0.0):
        self.weights = [param.detach().double().clone() for param in params]
        self.means = [torch.zeros_like(weight) for weight in self.weights]
        self.squares = [torch.zeros_like(weight) for weight in self.weights]
        self.options, self.count = (lr, betas, eps, decay, inside, corrects, limit), 0

    def step(self, grads):
        lr, (beta1, beta2), eps, decay, inside, corrects, limit = self.options
        self.count += 1
        grads = [grad.double() for grad in grads]
        norm = math.sqrt(sum(float((grad**2).sum()) for grad in grads))
        divisor = max(1.0, (norm + 1e-6) / limit) if limit else 1.0
        rate = lr * math.sqrt(1 - beta2**self.count) / (1 - beta1**self.count) if corrects else lr
        for index, grad in enumerate(grads):
            self.means[index] = beta1 * self.means[index] + (1 - beta1) * grad / divisor
            self.squares[index] = beta2 * self.squares[index] + (1 - beta2) * (grad / divisor) ** 2
            root = (self.squares[index] + eps).sqrt() if inside else self.squares[index].sqrt() + eps
            update = self.means[index] / root + decay * self.weights[index]
            self.weights[index] = self.weights[index] - rate * update


OPTIONS = [
    ({}, {}),
    ({"eps_inside_sqrt": True}, {"inside": True}),
    ({"bias_correction": False}, {"corrects": False}),
    ({"max_grad_norm": 1.0}, {"limit": 1.0}),
]


def close(params, right):
    return all(torch.allclose(one.detach().double(), each, rtol=1e-5, atol=1e-6) for one, each in zip(params, right))


@pytest.mark.parametrize("options, reference", OPTIONS, ids=lambda each: " ".join(each) or "plain")
def test_adam_follows_the_formula_of_its_time(options, reference):
    params = new_params()
    optimizer = optimizers.FusedAdam(params, lr=0.1, eps=1e-3, weight_decay=0.1, **options)
    right = Reference(params, **reference)
    for step in range(STEPS):
        for param, grad in zip(params, values(step)):
            param.grad = grad
        optimizer.step()
        right.step(values(step))
    assert close(params, right.weights)


@pytest.mark.parametrize("given", ["list", "lists", "generator", "with norms"])
def test_gradients_copies_scale_and_norms_may_be_given(given):
    params = new_params()
    optimizer = optimizers.FusedAdam(params, lr=0.1, eps=1e-3, weight_decay=0.1, max_grad_norm=1.0)
    right = Reference(params, limit=1.0)
    copies = [torch.empty(param.shape, dtype=torch.float16) for param in params]
    for step in range(STEPS):
        grads = [grad.half() for grad in values(step)]
        norms = [math.sqrt(sum(float((grad.double() ** 2).sum()) for grad in grads))]
        optimizer.step(
            grads={"generator": (grad for grad in grads), "lists": [grads]}.get(given, grads),
            output_params=[copies] if given == "lists" else copies,
            scale=4.0,
            grad_norms=norms if given == "with norms" else None,
        )
        right.step([grad.double() / 4.0 for grad in grads])
    assert close(params, right.weights)
    assert all(torch.equal(copy_.double(), param.detach().half().double()) for copy_, param in zip(copies, params))
    assert all(param.grad is None for param in params)


OLDER = [
    {"max_grad_norm": 1.0},
    {"eps_inside_sqrt": True},
    {"use_mt": True},
    {"amp_scale_adjustment": 1.0},
]


@pytest.mark.parametrize("options", OLDER, ids=lambda each: list(each)[0])
def test_todays_name_with_a_keyword_of_then_is_the_optimizer_of_then(options):
    params = new_params()
    optimizer = apex_optimizers.FusedAdam(params, lr=0.1, eps=1e-3, weight_decay=0.1, **options)
    assert type(optimizer) is optimizers.FusedAdam and isinstance(optimizer, apex_optimizers.FusedAdam)
    right = Reference(params, limit=options.get("max_grad_norm", 0.0), inside="eps_inside_sqrt" in options)
    for step in range(STEPS):
        optimizer = copy.deepcopy(optimizer)
        params = optimizer.param_groups[0]["params"]
        for param, grad in zip(params, values(step)):
            param.grad = grad
        optimizer.step()
        right.step(values(step))
    assert close(params, right.weights)


def test_the_signature_of_todays_adam_is_its_own():
    names = ["lr", "bias_correction", "betas", "eps", "adam_w_mode", "weight_decay", "amsgrad", "set_grad_none"]
    names = ["params"] + names + ["capturable", "master_weights"]
    assert list(inspect.signature(apex_optimizers.FusedAdam).parameters) == names
    assert inspect.getfullargspec(apex_optimizers.FusedAdam.__init__).args == ["self"] + names
    assert not isinstance(apex_optimizers.FusedAdam(new_params()), optimizers.FusedAdam)


def test_the_error_of_a_subclass_of_todays_adam_names_the_base_to_derive_from():
    class Subclass(apex_optimizers.FusedAdam):
        pass

    with pytest.raises(TypeError, match="max_grad_norm .* derive Subclass from that"):
        Subclass(new_params(), max_grad_norm=1.0)


@pytest.mark.parametrize("options", [{"max_grad_norm": 1.0}, {}], ids=["by keyword", "by the wrapper"])
def test_within_the_wrapper_of_then_todays_name_is_the_optimizer_of_then(options):
    params = new_params()
    right = Reference(params, limit=options.get("max_grad_norm", 0.0))
    optimizer = FP16_Optimizer(apex_optimizers.FusedAdam(params, lr=0.1, eps=1e-3, weight_decay=0.1, **options))
    assert type(optimizer.optimizer) is optimizers.FusedAdam
    for step in range(STEPS):
        optimizer.zero_grad()
        optimizer.backward(sum((param * grad).sum() for param, grad in zip(params, values(step))))
        optimizer.step()
        right.step(values(step))
    assert close(params, right.weights)
    saved = io.BytesIO()
    torch.save(optimizer.optimizer, saved)
    assert saved.tell() > 0


@pytest.mark.parametrize("options", [{"adam_w_mode": False}, {"capturable": True}], ids=lambda each: list(each)[0])
def test_the_wrapper_does_not_convert_an_adam_with_options_of_today(options):
    optimizer = apex_optimizers.FusedAdam(new_params(), **options)
    assert type(FP16_Optimizer(optimizer).optimizer) is apex_optimizers.FusedAdam


def test_sgd_takes_its_rate_from_the_groups():
    first, second = new_params()
    optimizer = apex_optimizers.FusedSGD(
        [{"params": [first], "lr": 0.25}, {"params": [second], "lr": 0.5}], momentum=0.125
    )
    before = [first.detach().clone(), second.detach().clone()]
    first.grad, second.grad = torch.ones_like(first), torch.ones_like(second)
    optimizer.step()
    assert torch.allclose(first.detach(), before[0] - 0.25) and torch.allclose(second.detach(), before[1] - 0.5)
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    for wrong in (
        lambda: apex_optimizers.FusedSGD([first]),
        lambda: optimizer.add_param_group({"params": [new_params()[0]]}),
    ):
        with pytest.raises(ValueError, match="FusedSGD needs a learning rate"):
            wrong()
    assert len(optimizer.param_groups) == 2


def test_lists_of_another_length_are_refused():
    with pytest.raises(TypeError, match=r"grads=.*\[2\], but got \[1\]"):
        optimizers.FusedAdam(new_params()).step(grads=[torch.ones(3, 2)])


def test_sgd_takes_the_same_arguments():
    params, plain = new_params(), new_params()
    options = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1}
    optimizer, right = optimizers.FusedSGD(params, **options), torch.optim.SGD(plain, **options)
    copies = [torch.empty(param.shape, dtype=torch.float16) for param in params]
    for step in range(STEPS):
        optimizer.step(grads=[4 * grad for grad in values(step)], output_params=copies, scale=4.0)
        for param, grad in zip(plain, values(step)):
            param.grad = grad
        right.step()
    assert close(params, [param.detach().double() for param in plain])
    assert torch.equal(copies[0].double(), params[0].detach().half().double())
