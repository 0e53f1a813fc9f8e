"""The functions of the syncbn extension against batch norm in float64, on one rank and combined over two."""

import importlib
import inspect

import pytest
import torch

from ampcompat.apex import install
from ampcompat.apex.parallel import sync_batchnorm as own_syncbn

EPS = 1e-3
CHANNELS = 3
each_layout = pytest.mark.parametrize("layout", ["", "_c_last"])
each_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64], ids=str)


@pytest.fixture(autouse=True)
def syncbn():
    install.install()
    yield importlib.import_module("syncbn")
    install.uninstall()


def randoms(*shape):
    return torch.randn(shape, dtype=torch.float64)


def laid_out(tensor, layout, dtype):
    return (tensor.transpose(1, -1).contiguous() if layout else tensor).to(dtype)


def back(tensor, layout):
    return (tensor.transpose(1, -1) if layout else tensor).double()


def tolerance(dtype):
    return {torch.float32: 1e-5, torch.float16: 4e-3, torch.float64: 1e-12}[dtype]


def close(one, other, dtype):
    return (one.double() - other).abs().max().item() <= tolerance(dtype) * max(1.0, other.abs().max().item())


class Reference:
    """Batch norm in float64 by autograd."""

    def __init__(self, input, weight, shift, z=None, relu=False):
        leaves = [each.clone().requires_grad_() for each in (input, weight, shift)]
        dims = [dim for dim in range(input.dim()) if dim != 1]
        form = (1, -1) + (1,) * (input.dim() - 2)
        mean, var = leaves[0].mean(dims, keepdim=True), leaves[0].var(dims, unbiased=False, keepdim=True)
        before = (leaves[0] - mean) / (var + EPS).sqrt() * leaves[1].view(form) + leaves[2].view(form)
        before = before if z is None else before + z
        self.output, self.leaves = before.clamp(min=0) if relu else before, leaves
        self.mean, self.var, self.before = mean.detach().reshape(-1), var.detach().reshape(-1), before.detach()

    def gradients(self, grad):
        return torch.autograd.grad(self.output, self.leaves, grad)


def test_the_module_has_apexs_names_and_signatures(syncbn):
    names = "welford_mean_var batchnorm_forward reduce_bn batchnorm_backward".split()
    for name in names + [name + "_c_last" for name in names] + ["welford_parallel", "relu_bw_c_last"]:
        assert getattr(syncbn, name) is getattr(own_syncbn, name)
    assert list(inspect.signature(syncbn.welford_parallel).parameters)[2:] == ["numel", "eps"]
    forward = list(inspect.signature(syncbn.batchnorm_forward_c_last).parameters)
    assert forward == ["input", "z", "mean", "inv_std", "weight", "shift", "fuse_relu"]


@each_layout
@each_dtype
def test_one_rank_computes_batch_norm_and_its_gradients(syncbn, layout, dtype):
    input, grad, weight, shift = randoms(4, CHANNELS, 5, 2), randoms(4, CHANNELS, 5, 2), randoms(3), randoms(3)
    input, grad = input.to(dtype).double(), grad.to(dtype).double()
    right = Reference(input, weight.to(dtype).double(), shift.to(dtype).double())
    grads = right.gradients(grad)
    x, dy = laid_out(input, layout, dtype), laid_out(grad, layout, dtype)
    weight, shift = weight.to(dtype), shift.to(dtype)
    mean, var = getattr(syncbn, "welford_mean_var" + layout)(x)
    assert mean.dtype == (torch.float64 if dtype is torch.float64 else torch.float32)
    assert close(mean, right.mean, dtype) and close(var, right.var, dtype)
    inv_std = 1 / (var + EPS).sqrt()
    if layout:
        output = syncbn.batchnorm_forward_c_last(x, None, mean, inv_std, weight, shift, False)
    else:
        output = syncbn.batchnorm_forward(x, mean, inv_std, weight, shift)
    assert output.dtype == dtype and output.shape == x.shape
    assert close(back(output, layout), right.output.detach(), dtype)
    sums = getattr(syncbn, "reduce_bn" + layout)(dy, x, mean, inv_std, weight)
    assert close(sums[2], grads[1], dtype) and close(sums[3], grads[2], dtype) and sums[2].dtype == dtype
    assert close(sums[0], grads[2], dtype)
    count = torch.tensor([40], dtype=torch.int32)
    backward = getattr(syncbn, "batchnorm_backward" + layout)
    grad_input = backward(dy, x, mean, inv_std, weight, sums[0], sums[1], count)
    assert grad_input.dtype == dtype and close(back(grad_input, layout), grads[0], dtype)
    older = backward(dy, x, mean, inv_std, weight, sums[0] / 40, sums[1] / 40)
    assert close(back(older, layout), grads[0], dtype)


@pytest.mark.parametrize("has_z", [True, False])
def test_a_fused_relu_and_its_backward(syncbn, has_z):
    input, z, grad, weight, shift = [randoms(6, CHANNELS, 2) for _ in range(3)] + [randoms(3), randoms(3)]
    z = z if has_z else None
    right = Reference(input, weight, shift, z, relu=True)
    x, dy, z = [None if each is None else laid_out(each, "_c_last", torch.float64) for each in (input, grad, z)]
    mean, var = syncbn.welford_mean_var_c_last(x)
    inv_std = 1 / (var + EPS).sqrt()
    output = syncbn.batchnorm_forward_c_last(x, z, mean, inv_std, weight, shift, True)
    assert close(back(output, "_c_last"), right.output.detach(), torch.float64)
    masked = syncbn.relu_bw_c_last(dy, x, z, mean, inv_std, weight, shift)
    assert torch.equal(back(masked, "_c_last"), torch.where(right.before > 0, grad, torch.zeros_like(grad)))


def test_two_ranks_of_different_sizes_are_one_batch(syncbn):
    input, grad, weight, shift = randoms(7, CHANNELS, 4), randoms(7, CHANNELS, 4), randoms(3), randoms(3)
    right = Reference(input, weight, shift)
    parts, grads = input.split([2, 5]), grad.split([2, 5])
    means, variances = zip(*[syncbn.welford_mean_var(part) for part in parts])
    counts = torch.tensor([8, 20], dtype=torch.int32)
    mean, var, inv_std = syncbn.welford_parallel(torch.stack(means), torch.stack(variances), counts, EPS)
    assert close(mean, right.mean, torch.float64) and close(var, right.var * 28 / 27, torch.float64)
    assert close(inv_std, (right.var + EPS) ** -0.5, torch.float64)
    sums = [syncbn.reduce_bn(dy, x, mean, inv_std, weight) for dy, x in zip(grads, parts)]
    joint = [sums[0][index] + sums[1][index] for index in range(2)]
    found = [syncbn.batchnorm_backward(dy, x, mean, inv_std, weight, *joint, counts) for dy, x in zip(grads, parts)]
    assert close(torch.cat(found), right.gradients(grad)[0], torch.float64)


def test_ranks_of_one_size_may_be_given_as_a_number(syncbn):
    parts = randoms(4, CHANNELS, 3).split(2)
    means, variances = map(torch.stack, zip(*[syncbn.welford_mean_var(part) for part in parts]))
    counted = syncbn.welford_parallel(means, variances, torch.tensor([6, 6]), EPS)
    assert all(torch.equal(*pair) for pair in zip(counted, syncbn.welford_parallel(means, variances, 6, EPS)))


@each_layout
def test_without_weight_and_shift_the_output_is_normal(syncbn, layout):
    input, grad, ones = randoms(4, CHANNELS, 5), randoms(4, CHANNELS, 5), torch.ones(CHANNELS, dtype=torch.float64)
    right = Reference(input, ones, 0 * ones)
    x, dy = laid_out(input, layout, torch.float64), laid_out(grad, layout, torch.float64)
    mean, var = getattr(syncbn, "welford_mean_var" + layout)(x)
    inv_std = 1 / (var + EPS).sqrt()
    sums = getattr(syncbn, "reduce_bn" + layout)(dy, x, mean, inv_std, None)
    assert [each.numel() for each in sums] == [3, 3, 0, 0]
    backward = getattr(syncbn, "batchnorm_backward" + layout)
    found = backward(dy, x, mean, inv_std, None, *sums[:2], torch.tensor([20], dtype=torch.int32))
    assert close(back(found, layout), right.gradients(grad)[0], torch.float64)
