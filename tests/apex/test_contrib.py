"""apex.contrib's clipping and cross entropy against their formulas in float64."""

import math

import pytest
import torch
from helpers.dispatched import Watch
from helpers.half_kernels import dtype_params, trains_in

from ampcompat.apex.contrib import SoftmaxCrossEntropyLoss, clip_grad_norm_
from ampcompat.support.torch_compat import features

EPS = {torch.float64: 2.0**-52, torch.float32: 2.0**-23, torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7}
each_dtype = pytest.mark.parametrize("dtype", dtype_params(*EPS))


# -- cross entropy -----------------------------------------------------------------------------------------------------


def losses_by_formula(logits, labels, smoothing, padding):
    """Return the losses in float64."""
    logs = logits - logits.exp().sum(1, keepdim=True).log()
    picked = torch.stack([row[label if label != padding else 0] for row, label in zip(logs, labels)])
    is_counted = torch.tensor([float(label != padding) for label in labels]).double()
    return -((1.0 - smoothing) * picked + smoothing * logs.mean(1)) * is_counted


@each_dtype
@pytest.mark.parametrize("smoothing, padding", [(0.0, 0), (0.1, 0), (0.3, -100), (0.0, 7)])
def test_cross_entropy_follows_the_formula(dtype, smoothing, padding):
    generator = torch.Generator().manual_seed(2)
    logits = (8 * torch.randn(6, 5, generator=generator)).to(dtype).requires_grad_()
    labels = [0, 4, 2, 1, 0, 3] if padding != 7 else [0, 4, 7, 1, 7, 3]
    if padding == -100:
        labels[2] = -100
    losses = SoftmaxCrossEntropyLoss.apply(logits, torch.tensor(labels), smoothing, padding)
    wide = logits.detach().double().requires_grad_()
    right = losses_by_formula(wide, labels, smoothing, padding)
    assert losses.dtype is dtype and losses.shape == (6,)
    assert (losses.detach().double() - right.detach()).abs().max() <= 8 * EPS[dtype] * max(1.0, float(right.max()))
    losses.backward(torch.arange(1.0, 7.0).to(dtype))
    right.backward(torch.arange(1.0, 7.0).double())
    assert logits.grad.dtype is dtype
    assert (logits.grad.double() - wide.grad).abs().max() <= 16 * EPS[dtype]


@each_dtype
def test_losses_of_half_logits_come_in_float32_if_asked(dtype):
    logits = torch.tensor([[300.0, -300.0], [1.0, 2.0]]).to(dtype).requires_grad_()
    losses = SoftmaxCrossEntropyLoss.apply(logits, torch.tensor([1, 1]), 0.0, -1, True)
    assert losses.dtype is (torch.float64 if dtype is torch.float64 else torch.float32)
    assert losses[0].item() == 600.0 and losses[1].item() == pytest.approx(math.log1p(math.exp(-1.0)), rel=1e-5)
    losses.sum().backward()
    assert logits.grad.dtype is dtype


# -- clipping ----------------------------------------------------------------------------------------------------------


def gradients(dtypes):
    generator = torch.Generator().manual_seed(4)
    params = [torch.nn.Parameter(torch.zeros(3, 2, dtype=dtype)) for dtype in dtypes]
    for param in params:
        param.grad = (4 * torch.randn(3, 2, generator=generator)).to(param.dtype)
    return params


def norm_by_hand(params, order):
    values = [abs(value) for param in params for value in param.grad.double().reshape(-1).tolist()]
    return max(values) if order == math.inf else sum(value**order for value in values) ** (1.0 / order)


@pytest.mark.parametrize("order", [2, 1.0, 3, math.inf])
@pytest.mark.parametrize("limit", [0.5, 1000.0])
def test_clipping_scales_by_the_joint_norm_over_all_dtypes(order, limit):
    expected = [torch.float32, torch.float16, torch.float64, torch.bfloat16]
    params = gradients([dtype for dtype in expected if trains_in(dtype)])
    before = [param.grad.double().clone() for param in params]
    right = norm_by_hand(params, order)
    found = clip_grad_norm_(iter(params + [torch.nn.Parameter(torch.ones(2))]), limit, order)
    assert float(found) == pytest.approx(right, rel=1e-4) and found.shape == ()
    factor = min(1.0, limit / (right + 1e-6))
    for param, old in zip(params, before):
        tolerance = 4 * EPS[param.dtype] + 1e-4 * (factor < 1.0)
        assert (param.grad.double() - old * factor).abs().max() <= tolerance * float(old.abs().max())


@pytest.mark.skipif(not trains_in(torch.float16), reason="this torch cannot multiply half tensors on a CPU")
def test_the_norm_of_half_gradients_does_not_overflow():
    param = torch.nn.Parameter(torch.zeros(16, dtype=torch.float16))
    param.grad = torch.full((16,), 32768.0, dtype=torch.float16)
    assert float(clip_grad_norm_(param, 1.0)) == 131072.0
    assert (param.grad.double() - 0.25).abs().max() < 1e-3


def test_without_gradients_there_is_nothing_to_clip():
    assert float(clip_grad_norm_([torch.nn.Parameter(torch.ones(1))], 1.0)) == 0.0


@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
def test_a_norm_that_is_not_finite_is_an_error_if_asked_for(bad):
    (param,) = gradients([torch.float32])
    param.grad[0, 0] = bad
    with pytest.raises(RuntimeError, match="2.0-norm of the gradients is (inf|nan)"):
        clip_grad_norm_([param], 1.0, error_if_nonfinite=True)
    clip_grad_norm_([param], 1.0)


@pytest.mark.skipif(not hasattr(torch, "_foreach_max"), reason="this torch has no foreach for all of it")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_clipping_takes_as_many_operations_for_any_number_of_params(dtype):
    if not features.foreach_norm_takes(2, dtype is torch.float16):
        pytest.skip("this torch has no float32 norms of half tensors in one operation")
    counts = []
    for count in (3, 30):
        params = gradients([dtype] * count)
        with Watch() as watch:
            clip_grad_norm_(params, 1.0)
        counts.append(len(watch.calls))
    assert counts[0] == counts[1]
