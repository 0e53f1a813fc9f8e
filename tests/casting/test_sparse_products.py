"""Products of sparse matrices at O1 and O4: as the op table has them, with emulated half and without."""

import pytest
import torch
from helpers.precision import HIGH, low_of

import ampcompat
from ampcompat import amp, opt_levels
from ampcompat.engine.casting import emulated_half_arithmetic

pytestmark = pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta:UserWarning")

DENSE = [[1.0, 0.0, 2.0, 0.0], [0.0, 3.3, 0.0, 0.0], [0.1, 0.0, 0.7, -1.3]]

LAYOUTS = {
    "coo": lambda dense: dense.to_sparse(),
    "csr": pytest.param(
        lambda dense: dense.to_sparse_csr(),
        marks=pytest.mark.skipif(not hasattr(torch.Tensor, "to_sparse_csr"), reason="this torch has no CSR matrices"),
    ),
}

PRODUCTS = {
    "@": lambda adj, h: adj @ h,
    "torch.matmul": lambda adj, h: torch.matmul(adj, h),
    "torch.mm": lambda adj, h: torch.mm(adj, h),
    "Tensor.mm": lambda adj, h: adj.mm(h),
    "torch.spmm": lambda adj, h: torch.spmm(adj, h),
    "torch.sparse.mm": lambda adj, h: torch.sparse.mm(adj, h),
    "torch.sparse.addmm": lambda adj, h: torch.sparse.addmm(torch.ones(3, 2, dtype=HIGH), adj, h) - 1,
    "torch.addmm": lambda adj, h: torch.addmm(torch.ones(3, 2, dtype=HIGH), adj, h) - 1,
}


#: (level, AMPCOMPAT_HALF_MATH, whether the matrix has a gradient)
CASES = [("O1", "on", True), ("O1", "on", False), ("O4", "on", True), ("O4", "off", False)]


@pytest.fixture(params=CASES, ids=lambda case: "{} {}{}".format(*case[:2] + (" trained" if case[2] else "",)))
def case(request, backend, monkeypatch):
    """(The low dtype of a session that casts by function, whether the matrix has a gradient)."""
    level, setting, trains = request.param
    monkeypatch.setenv(emulated_half_arithmetic.VARIABLE, setting)
    low = low_of(level)
    with ampcompat.session(level, backend=backend, dtypes=opt_levels.DtypePair(low, HIGH), verbosity=0):
        model = torch.nn.Linear(1, 1).to(HIGH)
        amp.initialize(model, torch.optim.SGD(model.parameters(), lr=0.1), verbosity=0)
        yield low, trains


def rounded(values, low):
    return torch.as_tensor(values).to(low).double()


def skip_unless_torch_can(name, adj, h, low):
    """Skip where this torch cannot cast the matrix, or compute the product and its gradients in the high dtype."""
    with amp.disable_casts():
        try:
            adj.detach().to(low)  # before torch 1.12 matrices in CSR have no casts
            twin = adj.detach().requires_grad_(adj.requires_grad)
            PRODUCTS[name](twin, h.detach().requires_grad_()).sum().backward()
        except (RuntimeError, NotImplementedError, AttributeError) as error:
            pytest.skip(f"this torch: {error}")


@pytest.mark.parametrize("make", LAYOUTS.values(), ids=list(LAYOUTS))
@pytest.mark.parametrize("name", PRODUCTS)
def test_a_sparse_product_and_its_gradients(case, name, make):
    low, trains = case
    generator = torch.Generator().manual_seed(0)
    h = torch.randn(4, 2, generator=generator).to(HIGH).requires_grad_()
    adj = make(torch.tensor(DENSE, dtype=HIGH))
    if trains:
        adj.requires_grad_()
    skip_unless_torch_can(name, adj, h, low)
    found = PRODUCTS[name](adj, h)
    assert found.dtype is low and found.layout is torch.strided
    reference = rounded(DENSE, low) @ rounded(h.detach(), low)
    eps = torch.finfo(low).eps
    assert (found.detach().double() - reference).abs().max() <= 4 * eps * reference.abs().max()
    upstream = torch.randn(3, 2, generator=generator)
    found.backward(upstream.to(low))
    wanted = rounded(DENSE, low).t() @ rounded(upstream, low)
    assert h.grad.dtype is HIGH and (h.grad.double() - wanted).abs().max() <= 4 * eps * wanted.abs().max()
    if trains:
        full = adj.grad.to_dense() if adj.grad.layout is not torch.strided else adj.grad
        wanted = rounded(upstream, low) @ rounded(h.detach(), low).t()
        there = torch.tensor(DENSE) != 0  # some kernels give the gradient of the zeros too
        difference = (full.double() - wanted).abs()[there]
        assert adj.grad.dtype is HIGH and difference.max() <= 4 * eps * wanted.abs().max()
