"""torch.compile under both backends: whole graphs, the same dtypes."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from helpers import compilers
from opened import NATIVE, SETTINGS, opened, setting_id
from torch.utils.checkpoint import checkpoint

import ampcompat
from ampcompat import amp, opt_levels

if not hasattr(torch, "compile"):
    pytest.skip(f"torch {torch.__version__} has no torch.compile", allow_module_level=True)
if not compilers.TELLS_THAT_IT_TRACES:
    pytest.skip("ampcompat cannot tell that this torch compiles: the casts split its graphs", allow_module_level=True)
pytestmark = pytest.mark.usefixtures("compiler_forgets")

COMPILERS = ("eager", "aot_eager")
#: Every setting; each compiler with each backend and with each dtype.
WITH_COMPILER = [(setting, COMPILERS[(setting[0] == "native") ^ (setting[1] == "bfloat16")]) for setting in SETTINGS]
each_setting_with_a_compiler = pytest.mark.parametrize("setting, compiler", WITH_COMPILER, ids=setting_id)
#: Each backend and each dtype once, where nothing depends on both: compiling takes long.
FEWER = [each for each in WITH_COMPILER if each[0] not in (("native", "bfloat16"), ("patched", "float16"))]
each_backend_with_a_compiler = pytest.mark.parametrize("setting, compiler", FEWER, ids=setting_id)
each_backend = pytest.mark.parametrize("setting", [setting for setting, _ in FEWER], ids=setting_id)


class Net(torch.nn.Module):
    """A bit of everything: convolution, norms, attention, products of several ranks, a loss."""

    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv1d(4, 8, 3, padding=1)
        self.norm = torch.nn.LayerNorm(8)
        self.attention = torch.nn.TransformerEncoderLayer(8, 2, dropout=0.0, batch_first=True)
        self.prelu = torch.nn.PReLU()
        self.out = torch.nn.Linear(8, 3)

    def forward(self, x, target):
        h = self.prelu(self.conv(x)).transpose(1, 2)
        h = self.attention(self.norm(F.gelu(h)) + torch.ones(()))
        logits = self.out(h).mean(1)
        spread = torch.einsum("ij,kj->ik", logits, logits).softmax(-1).std() + torch.tensordot(h, h, 3)
        return logits, F.cross_entropy(logits, target), spread


def needs_bound_methods_traced():
    if not compilers.traces_bound_methods():
        pytest.skip("the compiler of this torch splits the graph where a bound method is called")


def inputs():
    torch.manual_seed(0)
    return torch.randn(2, 4, 6), torch.tensor([0, 2])


@each_setting_with_a_compiler
def test_compiled_model_is_one_graph_with_the_same_dtypes_and_values(setting, compiler):
    needs_bound_methods_traced()
    torch.manual_seed(0)
    net, (x, target) = Net().to(setting.high), inputs()
    args = (x.to(setting.high), target)
    with opened(setting):
        expected = net(*args)
        expected[1].backward()
        wanted = [p.grad.clone() for p in net.parameters() if p.grad is not None]
        net.zero_grad()
        found = torch.compile(net, fullgraph=True, backend=compiler)(*args)
        found[1].backward()
    assert [t.dtype for t in found] == [t.dtype for t in expected]
    assert all(torch.allclose(a.float(), b.float(), rtol=0.05, atol=0.05) for a, b in zip(found, expected))
    for parameter, grad in zip((p for p in net.parameters() if p.grad is not None), wanted):
        assert parameter.grad.dtype is setting.high
        assert torch.allclose(parameter.grad, grad, rtol=0.1, atol=0.05)


@pytest.mark.filterwarnings("ignore:Dynamo d:UserWarning")  # what it cannot trace of a wrapper that Python calls
@each_backend_with_a_compiler
def test_a_pause_within_compiled_code_ends_where_it_ends_in_python(setting, compiler):

    def products(x):
        before = x.matmul(x), torch.mm(x, x)
        with backend.paused():
            within = x.matmul(x), torch.mm(x, x)
        return before, within, (x.matmul(x), torch.mm(x, x))

    with opened(setting) as backend:
        compiled = torch.compile(products, backend=compiler)
        for _ in range(2):  # the first call compiles
            assert [[each.dtype for each in pair] for pair in compiled(torch.ones(2, 2).to(setting.high))] == [
                [setting.low] * 2,
                [setting.high] * 2,
                [setting.low] * 2,
            ]


class Squared(torch.nn.Module):
    """Calls no function of torch by name: the compiler traces an operator without a call of our wrapper."""

    def forward(self, x):
        return x @ x


class Layer(torch.nn.Linear):
    """Calls a function by name, which has a wrapper."""

    def forward(self, x):
        return F.linear(x, self.weight, self.bias)


@pytest.mark.parametrize(
    "others, level, name",
    [((), "O4", "patched"), (("O1",), "O4", "patched"), (("O4",), "O4", "native"), ((), "O1", "native")],
)
@pytest.mark.parametrize("make", [Squared, lambda: Layer(2, 2)], ids=["operators", "a function"])
def test_a_compiled_model_of_initialize_sees_changed_weights_a_pause_and_the_end(others, level, name, make):
    needs_bound_methods_traced()
    low, x, plain = opt_levels.OPT_LEVELS[level].dtypes.low, torch.ones(2, 2), make()
    with ampcompat.session(backend=name, verbosity=0):
        for other in others:
            amp.initialize(torch.nn.Linear(2, 2), opt_level=other)
        model = amp.initialize(plain, opt_level=level)
        compiled = torch.compile(model, fullgraph=make is not Squared, backend="aot_eager")
        assert compiled(x).dtype is low
        with amp.disable_casts():
            assert compiled(x).dtype is model(x).dtype is torch.float32
        assert compiled(x).dtype is low
        with torch.no_grad():
            for param in plain.parameters():
                param.zero_()
            assert not compiled(x).any() or make is Squared
    assert compiled(x).dtype is torch.float32


@each_backend
def test_compiling_afterwards_knows_torchs_own_functions(setting):
    needs_bound_methods_traced()

    def work(x):
        return torch.matmul(x, x).exp() + F.softmax(F.linear(x, x), 1)

    x = torch.ones(2, 2)
    with opened(setting):
        torch.compile(work, fullgraph=True, backend="eager")(x)
    torch._dynamo.reset()
    assert torch.compile(work, fullgraph=True, backend="eager")(x).dtype is torch.float32


@pytest.fixture
def without_vector_instructions():
    """Keep inductor from trying out with the C++ compiler which of them the CPU has: that takes three times as long."""
    config = pytest.importorskip("torch._inductor.config", reason="this torch has no inductor")
    with config.patch({"cpp.vec_isa_ok": False} if hasattr(config.cpp, "vec_isa_ok") else {}):
        yield


@pytest.fixture
def keeping_subnormal_numbers():
    """Let other tests have them: what inductor of torch 2.5 compiles with -ffast-math turns them off."""
    yield
    torch.set_flush_denormal(False)


@pytest.mark.parametrize("setting", NATIVE[-1:], ids=setting_id)  # one is enough: it takes the C++ compiler's time
def test_compiled_by_inductor(setting, without_vector_instructions, keeping_subnormal_numbers):
    needs_bound_methods_traced()
    linear = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    with opened(setting):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # inductor's own
                result = torch.compile(linear, fullgraph=True)(torch.ones(2, 4))
        except torch._dynamo.exc.BackendCompilerFailed as error:
            pytest.skip(f"inductor finds no working C++ compiler: {error}")
        assert result.dtype is setting.low
        result.sum().backward()
        assert linear[0].weight.grad.dtype is torch.float32


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x.mm(weight.t())

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        return grad.mm(weight), grad.t().mm(x)


def of_a_custom_function(high):
    weight = torch.randn(3, 4, dtype=high, requires_grad=True)
    return lambda x: Product.apply(x, weight), [weight]


def with_a_checkpointed_block(high):
    block = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 4)).to(high)
    return lambda x: checkpoint(block, x, use_reentrant=False), list(block.parameters())


# The compiler itself makes one.
@pytest.mark.filterwarnings("ignore:.*autograd.* should not be instantiated:DeprecationWarning")
@each_backend_with_a_compiler
@pytest.mark.parametrize("make", [of_a_custom_function, with_a_checkpointed_block])
def test_a_compiled_model_has_the_dtypes_and_the_gradients_of_the_eager_one(setting, compiler, make):
    torch.manual_seed(0)
    model, weights = make(setting.high)
    x = torch.randn(5, 4, dtype=setting.high, requires_grad=True)
    with opened(setting):
        wanted = torch.autograd.grad(model(x).float().pow(2).sum(), [x, *weights])
        y = torch.compile(model, backend=compiler, fullgraph=True)(x)
        assert y.dtype is setting.low
        found = torch.autograd.grad(y.float().pow(2).sum(), [x, *weights])
    for one, other in zip(found, wanted):
        assert one.dtype is other.dtype is setting.high
        assert torch.allclose(one, other, rtol=0.02, atol=0.02 * float(other.abs().max()))


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # which the compiler reads of any argument
@pytest.mark.parametrize("level", ["O0", "O2"])
def test_inputs_in_containers_are_cast_before_a_compiled_model(level):
    class Second(torch.nn.Linear):
        def forward(self, inputs):
            return super().forward(inputs["second"])

    with ampcompat.session(verbosity=0):
        model = amp.initialize(Second(4, 3), opt_level=level)
        compiled = torch.compile(model, backend="eager")
        x = torch.randn(2, 4)
        for inputs in ({"first": x, "second": x}, {"first": [x], "second": x.double()}):
            assert torch.equal(compiled(inputs=inputs), model(inputs))
