"""The optimizers of ``apex.optimizers`` with their options: one row per branch of a formula; the float64 reference.

The reference uses the gradients that the optimizer got, rounded to the params' dtype.
"""

import optimizer_formulas as formulas
import torch

from ampcompat.apex import optimizers as apex_optimizers

SHAPES = [(4, 3), (5,), (), (2, 1, 2)]
STEPS = 4

#: (class, formula, options); the second group of each run has another rate and decay.
CASES = [
    (apex_optimizers.FusedAdam, formulas.adam, {"weight_decay": 0.1}),
    (apex_optimizers.FusedAdam, formulas.adam, {"weight_decay": 0.1, "adam_w_mode": False}),
    (apex_optimizers.FusedAdam, formulas.adam, {"bias_correction": False, "eps": 1e-4, "betas": (0.7, 0.8)}),
    (apex_optimizers.FusedAdam, formulas.adam, {"betas": (0.0, 0.9)}),
    (apex_optimizers.FusedAdam, formulas.adam, {"capturable": True, "weight_decay": 0.1}),
    (apex_optimizers.FusedSGD, formulas.sgd, {}),
    (apex_optimizers.FusedSGD, formulas.sgd, {"weight_decay": 0.1}),
    (apex_optimizers.FusedSGD, formulas.sgd, {"momentum": 0.9, "dampening": 0.3, "weight_decay": 0.1}),
    (apex_optimizers.FusedSGD, formulas.sgd, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    (apex_optimizers.FusedSGD, formulas.sgd, {"momentum": 0.9, "weight_decay": 0.1, "wd_after_momentum": True}),
    (apex_optimizers.FusedLAMB, formulas.lamb, {}),
    (apex_optimizers.FusedLAMB, formulas.lamb, {"use_nvlamb": True, "weight_decay": 0.0}),
    (apex_optimizers.FusedLAMB, formulas.lamb, {"weight_decay": 0.0, "max_grad_norm": 0.1}),
    (apex_optimizers.FusedLAMB, formulas.lamb, {"adam_w_mode": False, "grad_averaging": False, "max_grad_norm": 100.0}),
    (apex_optimizers.FusedLAMB, formulas.lamb, {"bias_correction": False, "max_grad_norm": 0}),
    (apex_optimizers.FusedMixedPrecisionLamb, formulas.lamb, {}),
    (apex_optimizers.FusedNovoGrad, formulas.novograd, {"weight_decay": 0.1}),
    (apex_optimizers.FusedNovoGrad, formulas.novograd, {"weight_decay": 0.1, "norm_type": 0}),
    (
        apex_optimizers.FusedNovoGrad,
        formulas.novograd,
        {"weight_decay": 0.1, "reg_inside_moment": True, "init_zero": True},
    ),
    (apex_optimizers.FusedNovoGrad, formulas.novograd, {"grad_averaging": False, "bias_correction": False}),
    (apex_optimizers.FusedAdagrad, formulas.adagrad, {"weight_decay": 0.1}),
    (apex_optimizers.FusedAdagrad, formulas.adagrad, {"weight_decay": 0.1, "adagrad_w_mode": True}),
]
IDS = ["{} {}".format(case[0].__name__, " ".join(sorted(case[2]))).strip() for case in CASES]
#: One row per class.
PLAIN = [next(case for case in CASES if case[0] is each) for each in dict.fromkeys(case[0] for case in CASES)]


def fresh_params(dtype, shapes=SHAPES):
    generator = torch.Generator().manual_seed(1)
    return [torch.nn.Parameter(torch.randn(shape, generator=generator).to(dtype)) for shape in shapes]


def made(make, options, params):
    """Return an optimizer over two groups."""
    groups = [{"params": params[:2]}, {"params": params[2:], "lr": 0.02, "weight_decay": 0.3}]
    return make(groups, **dict({"lr": 0.05}, **options))


def params_of(optimizer):
    return [param for group in optimizer.param_groups for param in group["params"]]


def set_gradients(params, step):
    generator = torch.Generator().manual_seed(100 + step)
    for param in params:
        param.grad = (3 * torch.randn(param.shape, generator=generator)).to(param.dtype)


def same(one, other):
    """Return whether two tensors are equal; by way of float64, since old torch compares no half tensors on the CPU."""
    return one.dtype == other.dtype and torch.equal(one.detach().double(), other.detach().double())


class Reference:
    """The same run in float64, tensor by tensor."""

    def __init__(self, formula, optimizer, options):
        self.formula, self.options = formula, options
        self.weights = [param.detach().double().clone() for param in params_of(optimizer)]
        self.states = [{} for _ in self.weights]
        self.step_count = 0

    def step(self, optimizer, rounded_to=None):
        """Step with the gradients of the params of ``optimizer``; round the weights like half params."""
        self.step_count += 1
        rows = [(param, group) for group in optimizer.param_groups for param in group["params"]]
        gradients = [param.grad.double() for param, _ in rows]
        is_lamb = self.formula is formulas.lamb
        divisor = formulas.lamb_divisor(gradients, rows[0][1]) if is_lamb else 1.0
        for index, (gradient, (_, group)) in enumerate(zip(gradients, rows)):
            options = dict(self.options, **{name: value for name, value in group.items() if name != "params"})
            options["lr"] = float(options["lr"])
            weight = self.formula(self.weights[index], gradient, self.states[index], self.step_count, divisor, options)
            self.weights[index] = weight if rounded_to is None else weight.to(rounded_to).double()
