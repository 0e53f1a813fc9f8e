"""Layer norm and RMS norm against their formulas in float64; dtypes."""

import copy
import pickle

import pytest
import torch
from helpers.fake_devices import FakeDevice, autocast_flags, features_of_cuda, move, needs_fakes
from helpers.half_kernels import dtype_params
from helpers.networks import initialize, session_of, settings_at

from ampcompat.apex import normalization
from ampcompat.apex.contrib import FastLayerNorm
from ampcompat.apex.normalization import FusedLayerNorm, FusedRMSNorm, MixedFusedLayerNorm, MixedFusedRMSNorm
from ampcompat.errors import AmpValueError

LAYER_NORMS, RMS_NORMS = (FusedLayerNorm, MixedFusedLayerNorm), (FusedRMSNorm, MixedFusedRMSNorm)
each_norm = pytest.mark.parametrize("kind", LAYER_NORMS + RMS_NORMS, ids=lambda kind: kind.__name__)
DTYPES = dtype_params(torch.float64, torch.float32, torch.bfloat16, torch.float16)
each_dtype = pytest.mark.parametrize("dtype", DTYPES)
MIXES = [
    (DTYPES[0], torch.float32, torch.float64),
    (DTYPES[3], torch.float16, torch.float32),
    (DTYPES[2], torch.bfloat16, torch.float32),
    (DTYPES[3], torch.float32, torch.float16),
]
each_mix = pytest.mark.parametrize(
    "of_input, of_weights",
    [pytest.param(x, weights, id=f"{x}-{weights}", marks=dtype.marks) for dtype, x, weights in MIXES],
)


def tolerance(*dtypes):
    """Return how far off a few roundings in the narrowest of the dtypes may be."""
    return 16 * max(torch.finfo(dtype).eps for dtype in dtypes)


def assert_close(found, expected, *dtypes):
    scale = expected.abs().max().item() + 1.0
    assert (found.detach().double() - expected.reshape(found.shape)).abs().max().item() <= tolerance(*dtypes) * scale


def make_norm(kind, shape, dtype, **keywords):
    generator = torch.Generator().manual_seed(1)
    module = kind(shape, **keywords).to(dtype)
    with torch.no_grad():
        for param in module.parameters():
            param.copy_(torch.randn(param.shape, generator=generator))
    return module


def make_input(shape, dtype):
    generator = torch.Generator().manual_seed(2)
    x = (torch.randn(shape, generator=generator) * 3 + 1).to(dtype).requires_grad_()
    return x, torch.randn(shape, generator=generator)


def check(module, x, grad, dims):
    """Compare output and gradients with the formula in float64 over the last ``dims`` dimensions; return the output."""
    output = module(x)
    output.backward(grad.to(output.dtype))
    given = [tensor for tensor in (x, module.weight, getattr(module, "bias", None)) if tensor is not None]
    wide = [tensor.detach().double().requires_grad_() for tensor in given]
    expected, over = wide[0], tuple(range(-dims, 0))
    if isinstance(module, FusedLayerNorm):
        expected = expected - expected.mean(over, keepdim=True)
    expected = expected / (expected.pow(2).mean(over, keepdim=True) + module.eps).sqrt()
    expected = expected * wide[1] if len(given) > 1 else expected
    expected = expected + wide[2] if len(given) > 2 else expected
    expected.backward(grad.to(output.dtype).double())
    dtypes = {output.dtype}.union(tensor.dtype for tensor in given)
    assert_close(output, expected.detach(), *dtypes)
    for tensor, right in zip(given, wide):
        assert_close(tensor.grad, right.grad, *dtypes)
    return output


@each_dtype
@pytest.mark.parametrize("shape, dims", [(6, 1), ([6], 1), ((3, 6), 2), (torch.Size([4, 3, 6]), 3)], ids=str)
@each_norm
def test_output_and_gradients_follow_the_formula(kind, shape, dims, dtype):
    x, grad = make_input((2, 4, 3, 6), dtype)
    assert check(make_norm(kind, shape, dtype), x, grad, dims).dtype is dtype


@each_dtype
@pytest.mark.parametrize("kind", [FusedLayerNorm, FusedRMSNorm])
def test_without_weights_too(kind, dtype):
    x, grad = make_input((5, 7), dtype)
    module = kind(7, eps=0.5, elementwise_affine=False, memory_efficient=True)
    assert not list(module.parameters()) and not module.state_dict()
    assert check(module, x, grad, 1).dtype is dtype


@each_mix
@each_norm
def test_the_mixed_ones_take_the_weights_dtype_and_the_others_the_inputs(kind, of_input, of_weights):
    x, grad = make_input((5, 7), of_input)
    output = check(make_norm(kind, 7, of_weights), x, grad, 1)
    assert output.dtype is (of_weights if kind in (MixedFusedLayerNorm, MixedFusedRMSNorm) else of_input)
    assert x.grad.dtype is of_input


@each_mix
def test_the_fast_one_of_contrib_takes_a_size_and_an_epsilon(of_input, of_weights):
    x, grad = make_input((5, 7), of_input)
    norm = make_norm(FastLayerNorm, 7, of_weights, eps=1e-3)
    assert check(norm, x, grad, 1).dtype is of_input
    assert copy.deepcopy(norm).epsilon == norm.epsilon == norm.eps == 1e-3


@each_dtype
def test_the_functions_are_what_the_modules_compute(dtype):
    x = make_input((5, 7), dtype)[0]
    names = normalization
    layer, rms = make_norm(FusedLayerNorm, 7, dtype, eps=1e-6), make_norm(FusedRMSNorm, 7, dtype, eps=1e-6)
    weight, bias = layer.weight, layer.bias
    for function in (
        names.fused_layer_norm_affine, names.mixed_dtype_fused_layer_norm_affine,
        names.FusedLayerNormAffineFunction.apply, names.FusedLayerNormAffineMixedDtypesFunction.apply,
    ):  # fmt: skip
        assert torch.equal(function(x, weight, bias, (7,)), layer(x))
        assert torch.equal(function(x, weight, bias, (7,), 1e-6, True), layer(x))
    for function in (
        names.fused_rms_norm_affine, names.mixed_dtype_fused_rms_norm_affine,
        names.FusedRMSNormAffineFunction.apply, names.FusedRMSNormAffineMixedDtypesFunction.apply,
    ):  # fmt: skip
        assert torch.equal(function(x, rms.weight, 7), rms(x))
        assert torch.equal(function(x, rms.weight, 7, eps=1e-6), rms(x))
    assert torch.equal(names.manual_rms_norm(x, (7,), rms.weight, 1e-6), rms(x))
    for function, kind in (
        (names.fused_layer_norm, FusedLayerNorm), (names.FusedLayerNormFunction.apply, FusedLayerNorm),
        (names.fused_rms_norm, FusedRMSNorm), (names.FusedRMSNormFunction.apply, FusedRMSNorm),
    ):  # fmt: skip
        assert torch.equal(function(x, (7,)), kind(7, eps=1e-6, elementwise_affine=False)(x))


@pytest.mark.parametrize("dtype", [DTYPES[3]])
@each_norm
def test_halves_whose_squares_overflow_are_normed_all_the_same(kind, dtype):
    x = torch.tensor([[3e4, -2e4, 1e4, 6e4]], dtype=dtype, requires_grad=True)
    check(make_norm(kind, 4, dtype), x, torch.ones(1, 4), 1)


@each_norm
def test_an_input_of_another_shape_is_refused(kind):
    for wrong in (torch.ones(2, 3), torch.ones(2, 1)):
        with pytest.raises(RuntimeError, match="4"):
            kind(4)(wrong)
    with pytest.raises(RuntimeError):
        normalization.fused_rms_norm_affine(torch.ones(2, 4), torch.ones(1), 4)


@each_norm
def test_a_gradient_of_a_gradient(kind):
    module = make_norm(kind, 5, torch.float64)
    x = make_input((2, 5), torch.float64)[0]
    theirs = torch.nn.LayerNorm(5).double()
    theirs.load_state_dict(module.state_dict(), strict=False)
    if kind in LAYER_NORMS and not torch.autograd.gradgradcheck(theirs, (x,), raise_exception=False):
        pytest.skip("the second derivative of this torch's own layer_norm is wrong")
    assert torch.autograd.gradgradcheck(module, (x,))


@pytest.mark.filterwarnings("ignore:pickle support for Storage:FutureWarning")
@each_norm
def test_it_prints_copies_pickles_and_resets(kind):
    module = make_norm(kind, (2, 3), torch.float32)
    assert repr(module) == kind.__name__ + "((2, 3), eps=1e-05, elementwise_affine=True)"
    x = torch.randn(4, 2, 3)
    for clone in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert torch.equal(clone(x), module(x))
    fresh = kind((2, 3))
    fresh.load_state_dict(module.state_dict())
    assert torch.equal(fresh(x), module(x))
    assert sorted(module.state_dict()) == (["bias", "weight"] if kind in LAYER_NORMS else ["weight"])
    module.reset_parameters()
    assert torch.equal(module.weight, torch.ones(2, 3))


@pytest.mark.parametrize("kind", [MixedFusedLayerNorm, MixedFusedRMSNorm])
def test_the_mixed_ones_need_weights(kind):
    with pytest.raises(AmpValueError, match="elementwise_affine must be True"):
        kind(3, elementwise_affine=False)
    with pytest.raises(TypeError, match="size"):
        kind(3, size=1)
    with pytest.warns(UserWarning, match="leave elementwise_affine out"):
        kind(3, elementwise_affine=True)


class TwoWays(torch.nn.Module):
    """Calls from a branch that TorchScript never takes what it could not follow."""

    def forward(self, x):
        if torch.jit.is_scripting():
            x = x + 1
        else:
            x = normalization.fused_layer_norm(x, 5)
        return x


@pytest.mark.filterwarnings("ignore:.*torch.jit.script")
@pytest.mark.parametrize("kind", LAYER_NORMS)
def test_layer_norms_can_be_scripted(kind):
    module = make_norm(kind, 5, torch.float32)
    x = torch.randn(2, 5)
    try:
        torch.jit.script(TwoWays())
    except RuntimeError:
        pytest.skip("this torch compiles branches that it never takes")
    assert torch.equal(torch.jit.script(module)(x), module(x))


@pytest.mark.usefixtures("compiler_forgets")
@each_norm
def test_compiled_it_is_one_graph(kind):
    if not hasattr(torch, "compiler"):
        pytest.skip("this torch has no torch.compile, or that of 2.0")
    module = make_norm(kind, 5, torch.float32)
    x = torch.randn(2, 5)
    assert torch.equal(torch.compile(module, fullgraph=True, backend="eager")(x), module(x))


@needs_fakes
@each_norm
def test_compiled_on_cuda_it_is_one_graph(kind):
    if not hasattr(torch, "compiler"):
        pytest.skip("this torch has no torch.compile, or that of 2.0")
    device = FakeDevice("cuda")
    module, x = move(make_norm(kind, 5, torch.float32), device), device.put(torch.ones(2, 5))
    compiled = torch.compile(module, fullgraph=True, backend="eager")
    with features_of_cuda(), device.running():
        assert (compiled(x).device.type, compiled(x).dtype) == ("cuda", torch.float32)
        with autocast_flags("cuda", torch.float16):
            assert compiled(x).dtype is module(x).dtype is torch.float16


@pytest.mark.skipif(not hasattr(torch, "autocast"), reason="torch < 1.10")
@each_norm
def test_in_a_region_of_autocast_tensors_are_cast_to_its_dtype(kind):
    module = make_norm(kind, 5, torch.float32)
    x, low = torch.randn(2, 5), torch.bfloat16
    with torch.autocast("cpu", dtype=low):
        inside, double = module(x), module(x.double())
        with torch.autocast("cpu", enabled=False):
            assert module(x).dtype is torch.float32
    assert inside.dtype is low and torch.equal(inside, copy.deepcopy(module).to(low)(x.to(low)))
    assert double.dtype is (low if issubclass(kind, (MixedFusedLayerNorm, MixedFusedRMSNorm)) else torch.float64)


@pytest.mark.skipif(not hasattr(torch, "autocast"), reason="torch < 1.10")
@each_norm
@settings_at("O1", "O4")
def test_casts_of_amp_take_precedence_over_a_region_of_autocast(setting, kind):
    module = make_norm(kind, 5, setting.high)
    with session_of(setting):
        initialize(setting, module)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert module(torch.randn(2, 5).to(setting.high)).dtype is setting.high
