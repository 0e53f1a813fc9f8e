"""Sums that torch makes in half on a CPU, in results and in gradients, are float32 inside where half is emulated."""

import pytest
import torch
import torch.nn.functional as F
from helpers.half_kernels import dtype_params
from opened import PAIRS

from ampcompat.engine.casting import emulated_half_models
from ampcompat.support.torch_compat import features

if not features.has_function_modes():
    pytest.skip("this torch has no torch function modes", allow_module_level=True)

COUNT = 4096  # in half a sum of ones ends at 2048 (float16) or 256 (bfloat16)
SAME = torch.zeros(COUNT, dtype=torch.long)
ROWS = SAME.view(-1, 1).expand(-1, 3)
BAGS = SAME.view(64, 64)
MIDDLE = (torch.arange(31**3) == 15 * 31 * 31 + 15 * 31 + 15).float().view(1, 1, 31, 31, 31)


def zeros(like, *shape):
    return torch.zeros(shape, dtype=like.dtype)


#: Newer torch warns where a script does not say whether indices are checked; torch 1.13 has no such option.
UNCHECKED = {"check_invariants": False} if features.is_version_within(oldest="2.0") else {}


def sparse(values):
    return torch.sparse_coo_tensor(torch.stack([SAME, SAME]), values, (2, 2), **UNCHECKED)


# name: (function of one tensor, that tensor). Each of them adds up 4,096 or 1,024 ones, in its result or its gradient.
SUMS = {
    "embedding": (lambda w: F.embedding(SAME, w), torch.ones(4, 3)),
    "embedding of no gradient for padding": (lambda w: F.embedding(SAME, w, padding_idx=1), torch.ones(4, 3)),
    "sparse embedding": (lambda w: F.embedding(SAME, w, sparse=True), torch.ones(4, 3)),
    "torch.embedding": (lambda w: torch.embedding(w, SAME), torch.ones(4, 3)),
    "embedding_bag": (lambda w: F.embedding_bag(BAGS, w, mode="sum"), torch.ones(4, 3)),
    "sparse embedding_bag": (lambda w: F.embedding_bag(BAGS, w, mode="sum", sparse=True), torch.ones(4, 3)),
    "embedding_bag max": (lambda w: F.embedding_bag(SAME.view(-1, 2), w, mode="max"), torch.ones(4, 3)),
    "t[i]": (lambda w: w[SAME], torch.ones(4, 3)),
    "t[list]": (lambda w: w[[0] * COUNT], torch.ones(4, 3)),
    "t[:, i]": (lambda w: w[:, SAME], torch.ones(4, 3)),
    "t[i, j]": (lambda w: w[SAME, SAME], torch.ones(4, 3)),
    "take": (lambda w: w.take(SAME), torch.ones(4, 3)),
    "index_select": (lambda w: w.index_select(0, SAME), torch.ones(4)),
    "index_select of a middle dimension": (lambda w: torch.index_select(w, 1, SAME), torch.ones(2, 4, 3)),
    "gather": (lambda w: w.gather(0, ROWS), torch.ones(4, 3)),
    "take_along_dim": (lambda w: torch.take_along_dim(w, ROWS, 0), torch.ones(4, 3)),
    "max_pool1d": (lambda w: F.max_pool1d(w, 1024, stride=1), MIDDLE.view(1, 1, -1)[..., 13000:18000]),
    "max_pool2d": (lambda w: F.max_pool2d(w, 15, stride=1), MIDDLE[0, :, 15:16]),
    "max_pool3d": (lambda w: F.max_pool3d(w, 16, stride=1), MIDDLE),
    "avg_pool1d": (lambda w: F.avg_pool1d(w, 1024, stride=1) * 1024, torch.ones(1, 1, COUNT)),
    "avg_pool2d": (lambda w: F.avg_pool2d(w, 32, stride=1) * 1024, torch.ones(1, 1, 63, 63)),
    "avg_pool3d": (lambda w: F.avg_pool3d(w, 8, stride=1) * 512, torch.ones(1, 1, 15, 15, 15)),
    "lp_pool2d": (lambda w: F.lp_pool2d(w, 1.0, 32, stride=1), torch.ones(1, 1, 63, 63)),
    "adaptive_avg_pool1d": (lambda w: F.adaptive_avg_pool1d(w, COUNT), torch.ones(1, 1, 1)),
    "adaptive_avg_pool2d": (lambda w: F.adaptive_avg_pool2d(w, 64), torch.ones(1, 1, 1, 1)),
    "adaptive_avg_pool3d": (lambda w: F.adaptive_avg_pool3d(w, 16), torch.ones(1, 1, 1, 1, 1)),
    "adaptive_max_pool1d": (lambda w: F.adaptive_max_pool1d(w, COUNT), torch.ones(1, 1, 1)),
    "adaptive_max_pool2d": (lambda w: F.adaptive_max_pool2d(w, 64), torch.ones(1, 1, 1, 1)),
    "adaptive_max_pool3d": (lambda w: F.adaptive_max_pool3d(w, 16), torch.ones(1, 1, 1, 1, 1)),
    "grid_sample": (
        lambda w: F.grid_sample(w, zeros(w, 1, 64, 64, 2), align_corners=True),
        torch.ones(1, 1, 3, 3),
    ),
    "replication padding": (lambda w: F.pad(w, (COUNT - 1, 0), mode="replicate"), torch.ones(1, 1, 4)),
    "unfold": (lambda w: F.unfold(w, 32), torch.ones(1, 1, 63, 63)),
    "fold": (lambda w: F.fold(w, (64, 64), 32), torch.ones(1, 1024, 33 * 33)),
    "layer_norm, weight": (
        lambda w: F.layer_norm(zeros(w, COUNT, 2) + torch.tensor([1, -1]), (2,), w, None, 0.0) * torch.tensor([1, -1]),
        torch.ones(2),
    ),
    "layer_norm, bias": (lambda w: F.layer_norm(zeros(w, COUNT, 3), (3,), None, w), torch.ones(3)),
    "index_put": (lambda w: zeros(w, 4, 3).index_put((SAME,), w, accumulate=True), torch.ones(COUNT, 3)),
    "index_put_": (lambda w: zeros(w, 4, 3).index_put_((SAME,), w, accumulate=True), torch.ones(COUNT, 3)),
    "put": (lambda w: zeros(w, 4).put(SAME, w, accumulate=True), torch.ones(COUNT)),
    "put_": (lambda w: zeros(w, 4).put_(SAME, w, accumulate=True), torch.ones(COUNT)),
    "index_add": (lambda w: zeros(w, 4).index_add(0, SAME, w), torch.ones(COUNT)),
    "index_add_": (lambda w: zeros(w, 4).index_add_(0, SAME, w), torch.ones(COUNT)),
    "scatter_add_": (lambda w: zeros(w, 4).scatter_add_(0, SAME, w), torch.ones(COUNT)),
    "scatter_reduce": (lambda w: zeros(w, 4).scatter_reduce(0, SAME, w, "sum"), torch.ones(COUNT)),
    "segment_reduce": (
        lambda w: torch.segment_reduce(w, "sum", lengths=torch.tensor([COUNT]), unsafe=True),
        torch.ones(COUNT),
    ),
    "coalesce": (lambda w: sparse(w).coalesce().to_dense(), torch.ones(COUNT)),
    "to_dense": (lambda w: sparse(w).to_dense(), torch.ones(COUNT)),
    "sparse.sum": (lambda w: torch.sparse.sum(sparse(w), 1).to_dense(), torch.ones(COUNT)),
}
BOTH = dtype_params(torch.float16, torch.bfloat16)


def modes_see_indices():
    """Return whether this torch tells function modes of ``t[i]`` with a tensor; that of 2.2 does not."""
    seen = []

    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, kinds, args=(), kwargs=None):
            seen.append(function)
            return function(*args, **(kwargs or {}))

    with Mode():
        torch.ones(2)[torch.tensor([0])]
    return torch.Tensor.__getitem__ in seen


SEES_INDICES = modes_see_indices()


def dense(tensor):
    return tensor.detach().to_dense() if tensor.layout is not torch.strided else tensor.detach()


@pytest.mark.filterwarnings("ignore:scatter_reduce")  # is in beta with torch 1.13
@pytest.mark.parametrize("dtype", BOTH)
@pytest.mark.parametrize("name", sorted(SUMS))
def test_a_sum_and_a_gradient_are_those_of_float64_rounded_once(name, dtype):
    if name in ("t[i]", "t[i, j]") and not SEES_INDICES:
        pytest.skip("this torch does not tell function modes of t[i]")
    if name in ("coalesce", "sparse.sum") and features.is_version_within(newest="1.13"):
        pytest.skip("torch 1.13 lacks a kernel for sparse gradients in bfloat16")
    function, values = SUMS[name]
    pair = next(pair for pair in PAIRS.values() if pair.low is dtype)
    low, double = values.to(dtype).requires_grad_(), values.double().requires_grad_()
    with emulated_half_models.HalfMode(pair):
        found = function(low)
    expected = function(double)
    assert found.dtype is dtype
    assert torch.allclose(found.double(), expected, rtol=torch.finfo(dtype).eps)
    found.sum(dtype=torch.float64).backward()
    expected.sum().backward()
    assert low.grad.dtype is dtype
    assert low.grad.layout is double.grad.layout
    assert torch.allclose(dense(low.grad).double(), dense(double.grad), rtol=torch.finfo(dtype).eps)


def test_an_embedding_with_a_largest_norm_still_scales_its_own_weight():
    weight = torch.full((2, 4), 8.0, dtype=torch.float16)
    with emulated_half_models.HalfMode(PAIRS["float16"]):
        F.embedding(torch.tensor([0]), weight.requires_grad_(), max_norm=2.0)
    assert weight.detach().norm(dim=1).tolist() == [2.0, 16.0]


def test_slices_stay_views():
    whole = torch.zeros(4, 3, dtype=torch.float16)
    with emulated_half_models.HalfMode(PAIRS["float16"]):
        whole[1:3] += 1
        whole.clone().requires_grad_()[0].sum()
        assert whole[None, ..., 0]._is_view()
        assert whole.clone().requires_grad_()[torch.tensor(1)]._is_view()
    assert whole.sum() == 6


def test_an_in_place_sum_returns_its_own_tensor():
    into = torch.zeros(4, dtype=torch.float16)
    with emulated_half_models.HalfMode(PAIRS["float16"]):
        assert into.index_add_(0, SAME, torch.ones(COUNT, dtype=torch.float16)) is into
    assert into.tolist() == [4096.0, 0.0, 0.0, 0.0]
