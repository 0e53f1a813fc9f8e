"""The Python ``backward`` of a custom autograd.Function runs under the casts of its forward pass; C++ does not."""

import pytest
import torch
from helpers.threads import in_thread
from opened import NATIVE, PAIRS, call_checkpoint, each_setting, opened, setting_id

# torch 1.12's checkpoint queries CUDA's autocast on any machine.
pytestmark = pytest.mark.filterwarnings("ignore:.*device_type of 'cuda', but CUDA is not available")


class Product(torch.autograd.Function):
    """x @ weight.t(), with the products of its gradients written as if dtypes never differed."""

    seen = []

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x.mm(weight.t())

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        of_input, of_weight = grad.mm(weight), grad.t().mm(x)
        Product.seen.append(of_input.dtype)
        return of_input, of_weight


product = Product.apply  # held since before any backend, as modules do that import functions


class Outer(torch.autograd.Function):
    """Calls another custom function, in its forward pass and in its backward pass."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(weight)
        return product(x, weight)

    @staticmethod
    def backward(ctx, grad):
        (weight,) = ctx.saved_tensors
        return product(grad, weight.t()), None


def tensors(high, requires_grad=True):
    torch.manual_seed(0)
    x, weight = torch.randn(5, 4, dtype=high), torch.randn(3, 4, dtype=high)
    return x.requires_grad_(requires_grad), weight.requires_grad_(requires_grad)


def assert_close(found, wanted):
    assert torch.allclose(found.double(), wanted, atol=0.03 * float(wanted.abs().max()))


def assert_gradients(x, weight):
    """Compare with the gradients of ``(x @ weight.t()).pow(2).sum()``, worked out in float64."""
    a, b = x.detach().double(), weight.detach().double()
    of_output = 2 * a.mm(b.t())
    assert_close(x.grad, of_output.mm(b))
    assert_close(weight.grad, of_output.t().mm(a))


@pytest.fixture(autouse=True)
def nothing_seen():
    del Product.seen[:]


@each_setting
def test_backward_multiplies_a_low_gradient_with_a_high_weight(setting):
    low, high = PAIRS[setting[1]]
    x, weight = tensors(high)
    with opened(setting) as backend:
        y = product(x, weight)
        assert y.dtype is low
        y.float().pow(2).sum().backward()
        assert backend.active()
    assert Product.seen == [low]
    assert x.grad.dtype is weight.grad.dtype is high
    assert_gradients(x, weight)


@each_setting
def test_backward_is_paused_where_its_forward_pass_was(setting):
    high = PAIRS[setting[1]].high
    x, weight = tensors(high)
    with opened(setting) as backend:
        with backend.paused():
            y = product(x, weight)
        y.pow(2).sum().backward()
    assert Product.seen == [high]
    a, b = x.detach(), weight.detach()
    assert torch.equal(x.grad, (2 * a.mm(b.t())).mm(b))


@each_setting
def test_a_backward_pass_on_another_thread_and_in_a_pause_is_the_same(setting):
    low, high = PAIRS[setting[1]]
    x, weight = tensors(high)
    with opened(setting) as backend:
        loss = product(x, weight).float().pow(2).sum()

        def run():
            with backend.paused():
                loss.backward()

        in_thread(run)
    assert Product.seen == [low]
    assert_gradients(x, weight)


@each_setting
def test_functions_within_functions(setting):
    low, high = PAIRS[setting[1]]
    x, weight = tensors(high)
    with opened(setting):
        Outer.apply(x, weight).float().pow(2).sum().backward()
    a, b = x.detach().double(), weight.detach().double()
    assert_close(x.grad, (2 * a.mm(b.t())).mm(b))


@each_setting
def test_a_custom_function_differentiates_twice(setting):
    high = PAIRS[setting[1]].high
    x, weight = tensors(high)
    with opened(setting):
        (slope,) = torch.autograd.grad(product(x, weight).float().pow(2).sum(), x, create_graph=True)
        slope.float().sum().backward()
    b = weight.detach().double()
    wanted = 2 * torch.ones(5, 4, dtype=torch.float64).mm(b.t()).mm(b)  # of the sum of 2 x b.t() b
    assert_close(x.grad, wanted)


@each_setting
@pytest.mark.parametrize("reentrant", [True, False])
def test_a_recomputed_custom_function_runs_under_the_casts_of_the_call(setting, reentrant):
    low, high = PAIRS[setting[1]]
    x, weight = tensors(high)

    def block(x, weight):
        return product(x, weight).float().pow(2).sum()

    with opened(setting):
        call_checkpoint(block, reentrant, x, weight).backward()
    assert Product.seen == [low]
    assert_gradients(x, weight)


@each_setting
def test_a_backward_that_recomputes_and_differentiates_by_itself_gets_exact_gradients(setting):
    low, high = PAIRS[setting[1]]
    dtypes = []

    class OwnCheckpoint(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weight):
            ctx.save_for_backward(x, weight)
            with torch.no_grad():
                return x.mm(weight.t())

        @staticmethod
        def backward(ctx, grad):
            x, weight = (tensor.detach().requires_grad_() for tensor in ctx.saved_tensors)
            with torch.enable_grad():
                y = x.mm(weight.t())
            dtypes.append(y.dtype)
            torch.autograd.backward(y, grad)
            return x.grad, weight.grad

    x, weight = tensors(high)
    x_plain, weight_plain = tensors(high)
    with opened(setting):
        OwnCheckpoint.apply(x, weight).float().pow(2).sum().backward()
        x_plain.mm(weight_plain.t()).float().pow(2).sum().backward()
    assert dtypes == [low]
    assert torch.equal(x.grad, x_plain.grad)
    assert torch.equal(weight.grad, weight_plain.grad)


@each_setting
@pytest.mark.parametrize("module", ["torch.nn.somewhere", "ampcompat.apex.somewhere"])
def test_internal_functions_are_differentiated_without_casts(setting, module):
    high = PAIRS[setting[1]].high
    internal = type("Internal", (Product,), {"__module__": module})
    x, weight = tensors(high)
    with opened(setting):
        internal.apply(x, weight).to(high).pow(2).sum().to(high)
        del Product.seen[:]
        a = torch.ones(2, 2, dtype=high, requires_grad=True)
        with pytest.raises(RuntimeError):  # dtypes differ, and nothing casts
            internal.apply(a, a).float().sum().backward()
    assert Product.seen == []


@each_setting
def test_a_function_called_before_the_backend_opened_runs_without_casts(setting):
    high = PAIRS[setting[1]].high
    x, weight = tensors(high)
    loss = product(x, weight).pow(2).sum()
    with opened(setting):
        loss.backward()
    assert Product.seen == [high]


@each_setting
def test_a_function_whose_backend_is_closed_before_backward_runs_without_casts(setting):
    high = PAIRS[setting[1]].high
    x, weight = tensors(high)
    with opened(setting) as backend, backend.paused():
        loss = product(x, weight).pow(2).sum()
    loss.backward()
    assert Product.seen == [high]
    x, weight = tensors(high)
    with opened(setting) as backend, backend.paused():
        loss = product(x, weight).pow(2).sum()
    with opened(setting):  # another backend by now
        loss.backward()
    assert Product.seen == [high] * 2


@pytest.mark.skipif(not hasattr(torch, "func"), reason="this torch has no torch.func")
@each_setting
def test_torch_func_differentiates_a_custom_function(setting):
    high = PAIRS[setting[1]].high

    class Split(torch.autograd.Function):
        @staticmethod
        def forward(x, weight):
            return x.mm(weight.t())

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx, grad):
            x, weight = ctx.saved_tensors
            return grad.mm(weight), grad.t().mm(x)

    x, weight = tensors(high, requires_grad=False)
    with opened(setting):
        grad_of = torch.func.grad(lambda x, weight: Split.apply(x, weight).float().pow(2).sum(), argnums=(0, 1))
        x.grad, weight.grad = (gradient.to(high) for gradient in grad_of(x, weight))
    assert_gradients(x, weight)


@pytest.mark.skipif(not hasattr(torch.amp if hasattr(torch, "amp") else torch, "custom_fwd"), reason="torch >= 2.4")
@pytest.mark.parametrize("setting", NATIVE, ids=setting_id)
@pytest.mark.parametrize("cast_inputs", [torch.float32, None], ids=["float32", "no cast"])
def test_custom_fwd_and_custom_bwd_decide_for_themselves(setting, cast_inputs):
    low, high = PAIRS[setting[1]]
    dtypes = []

    class Decorated(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="cpu", cast_inputs=cast_inputs)
        def forward(ctx, x, weight):
            ctx.save_for_backward(x, weight)
            y = x.mm(weight.t())
            dtypes.append(y.dtype)
            return y

        @staticmethod
        @torch.amp.custom_bwd(device_type="cpu")
        def backward(ctx, grad):
            x, weight = ctx.saved_tensors
            of_input = grad.mm(weight)
            dtypes.append(of_input.dtype)
            return of_input, grad.t().mm(x)

    x, weight = tensors(high)
    with opened(setting):
        Decorated.apply(x.to(low), weight).float().pow(2).sum().backward()
    assert dtypes == [cast_inputs or low] * 2
