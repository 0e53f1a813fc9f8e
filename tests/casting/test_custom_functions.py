"""The Python ``backward`` of a custom autograd.Function runs under the casts of its forward pass; C++ does not."""

import pytest
import torch
from helpers.threads import in_thread
from opened import NATIVE, call_checkpoint, each_setting, opened, setting_id

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
    x, weight = tensors(setting.high)
    with opened(setting) as backend:
        y = product(x, weight)
        assert y.dtype is setting.low
        y.float().pow(2).sum().backward()
        assert backend.active()
    assert Product.seen == [setting.low]
    assert x.grad.dtype is weight.grad.dtype is setting.high
    assert_gradients(x, weight)


@each_setting
def test_a_backward_pass_on_another_thread_and_in_a_pause_is_the_same(setting):
    x, weight = tensors(setting.high)
    with opened(setting) as backend:
        loss = product(x, weight).float().pow(2).sum()

        def run():
            with backend.paused():
                loss.backward()

        in_thread(run)
    assert Product.seen == [setting.low]
    assert_gradients(x, weight)


@each_setting
def test_functions_within_functions(setting):
    x, weight = tensors(setting.high)
    with opened(setting):
        Outer.apply(x, weight).float().pow(2).sum().backward()
    a, b = x.detach().double(), weight.detach().double()
    assert_close(x.grad, (2 * a.mm(b.t())).mm(b))


@each_setting
def test_a_custom_function_differentiates_twice(setting):
    x, weight = tensors(setting.high)
    with opened(setting):
        (slope,) = torch.autograd.grad(product(x, weight).float().pow(2).sum(), x, create_graph=True)
        slope.float().sum().backward()
    b = weight.detach().double()
    wanted = 2 * torch.ones(5, 4, dtype=torch.float64).mm(b.t()).mm(b)  # of the sum of 2 x b.t() b
    assert_close(x.grad, wanted)


@each_setting
@pytest.mark.parametrize("reentrant", [True, False])
def test_a_recomputed_custom_function_runs_under_the_casts_of_the_call(setting, reentrant):
    x, weight = tensors(setting.high)

    def block(x, weight):
        return product(x, weight).float().pow(2).sum()

    with opened(setting):
        call_checkpoint(block, reentrant, x, weight).backward()
    assert Product.seen == [setting.low]
    assert_gradients(x, weight)


@each_setting
def test_a_backward_that_recomputes_and_differentiates_by_itself_gets_exact_gradients(setting):
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

    x, weight = tensors(setting.high)
    x_plain, weight_plain = tensors(setting.high)
    with opened(setting):
        OwnCheckpoint.apply(x, weight).float().pow(2).sum().backward()
        x_plain.mm(weight_plain.t()).float().pow(2).sum().backward()
    assert dtypes == [setting.low]
    assert torch.equal(x.grad, x_plain.grad)
    assert torch.equal(weight.grad, weight_plain.grad)


@each_setting
@pytest.mark.parametrize("module", ["torch.nn.somewhere", "ampcompat.apex.somewhere"])
def test_internal_functions_are_differentiated_without_casts(setting, module):
    internal = type("Internal", (Product,), {"__module__": module})
    x, weight = tensors(setting.high)
    with opened(setting):
        internal.apply(x, weight).to(setting.high).pow(2).sum().to(setting.high)
        del Product.seen[:]
        a = torch.ones(2, 2, dtype=setting.high, requires_grad=True)
        with pytest.raises(RuntimeError):  # dtypes differ, and nothing casts
            internal.apply(a, a).float().sum().backward()
    assert Product.seen == []


@each_setting
def test_a_function_that_was_called_without_casts_is_differentiated_without_them(setting):
    def loss():
        return product(*tensors(setting.high)).pow(2).sum()

    before = loss()
    with opened(setting) as backend:
        before.backward()
        with backend.paused():
            paused, outliving, of_another = loss(), loss(), loss()
        paused.backward()
    outliving.backward()
    with opened(setting):
        of_another.backward()
    assert Product.seen == [setting.high] * 4


@pytest.mark.skipif(not hasattr(torch, "func"), reason="this torch has no torch.func")
@each_setting
def test_torch_func_differentiates_a_custom_function(setting):

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

    x, weight = tensors(setting.high, requires_grad=False)
    with opened(setting):
        grad_of = torch.func.grad(lambda x, weight: Split.apply(x, weight).float().pow(2).sum(), argnums=(0, 1))
        x.grad, weight.grad = (gradient.to(setting.high) for gradient in grad_of(x, weight))
    assert_gradients(x, weight)


@pytest.mark.skipif(not hasattr(torch.amp if hasattr(torch, "amp") else torch, "custom_fwd"), reason="torch >= 2.4")
@pytest.mark.parametrize("setting", NATIVE, ids=setting_id)
@pytest.mark.parametrize("cast_inputs", [torch.float32, None], ids=["float32", "no cast"])
def test_custom_fwd_and_custom_bwd_decide_for_themselves(setting, cast_inputs):
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

    x, weight = tensors(setting.high)
    with opened(setting):
        Decorated.apply(x.to(setting.low), weight).float().pow(2).sum().backward()
    assert dtypes == [cast_inputs or setting.low] * 2
