"""Half and float32 tensors in one call, and half ones where torch has no kernels, at the levels with half weights.

Every function of the op table is called with every mixture of dtypes, and compared with torch without a session.
"""

import pytest
import torch
from helpers.networks import initialize, session_of, settings_at
from torch import nn
from torch.nn import functional as F

import ampcompat
from ampcompat import amp
from ampcompat.diagnostics.selftest import conformance
from ampcompat.diagnostics.selftest.sample_arguments import case_of
from ampcompat.engine.casting import autocast_flags, emulated_half_arithmetic, refused_calls
from ampcompat.engine.op_table import expansion
from ampcompat.engine.op_table.cast_rules import BANNED, FFT, PASSTHROUGH
from ampcompat.engine.op_table.function_properties import having
from ampcompat.launch.forced_levels.forced_level import forced, is_supported
from ampcompat.opt_levels import HALF, OPT_LEVELS
from ampcompat.support.containers import floating_tensors, map_arguments, tensors_in
from ampcompat.support.torch_compat import features

at_levels_with_half_weights = settings_at("O2", "O3", "O5")
#: Torch accepts some mixtures of these, as some kernels do not check a bias or a state; with the dtype of any of them.
UNCHECKED = ("conv", "lstm", "gru", "rnn", "bilinear", "addmv", "baddbmm")


def mixtures(count, low, high):
    """Return lists of dtypes: all low; one of them high; and one of them low."""
    single = [[high if i == j else low for j in range(count)] for i in range(count)] if count > 1 else []
    return [[low] * count] + single + [[low if i == j else high for j in range(count)] for i in range(count)]


def arguments(case, dtypes):
    """Return the arguments of a case in these dtypes, one for each floating tensor."""
    remaining = iter(dtypes)

    def cast(value):
        if isinstance(value, torch.Tensor):
            return value.to(next(remaining)) if value.is_floating_point() else value
        return type(value)(map(cast, value)) if type(value) in (list, tuple) else value

    args, kwargs = map_arguments(cast, case.make(), case.kwargs)
    return tuple(args), kwargs


def outcome(function, args, kwargs):
    """Return the tensors that a call returns, or None if it raises."""
    try:
        return list(tensors_in(function(*args, **kwargs)))
    except (RuntimeError, TypeError):
        return None


def calls(setting):
    """Yield (function, case, dtypes) of every function of the op table in every mixture."""
    for function in conformance.functions():
        case = case_of(function.row)
        if case is not None and function.row.rule not in (BANNED, PASSTHROUGH):
            count = len(floating_tensors(case.kwargs, floating_tensors(case.make(), [])))
            for dtypes in mixtures(count, setting.low, setting.high):
                yield function, case, dtypes


@at_levels_with_half_weights
@pytest.mark.filterwarnings("ignore")  # those of deprecated functions
def test_a_call_that_torch_accepts_is_torchs_own_and_any_other_is_computed_in_the_dtypes_of_the_table(setting):
    tried = [(*call, outcome(call[0].original, *arguments(*call[1:]))) for call in calls(setting)]
    with session_of(setting):
        initialize(setting, nn.Linear(1, 1))
        for function, case, dtypes, plain in tried:
            owner, row, _ = function
            found = outcome(getattr(owner, row.name), *arguments(case, dtypes))
            told = f"{owner.__name__}.{row.name} of {dtypes}"
            if plain is not None:
                assert [each.dtype for each in found] == [each.dtype for each in plain] or is_unchecked(row), told
                is_same = all(map(is_equal, found, plain))
                if not is_same:  # torch 1.9's lstsq returns memory that it has not written
                    again = outcome(function.original, *arguments(case, dtypes))
                    is_same = not all(map(is_equal, again, plain))
                assert is_same or not case.compares or is_unchecked(row), told
            elif is_for(row, setting, dtypes) and computes(function, case, dtypes, setting):
                assert found is not None, told
                floats = [each for each in found if each.is_floating_point()]
                assert {each.dtype for each in floats} <= {dtype_of(row, dtypes, setting)}, told
                check_values(found, outcome(getattr(owner, row.name), *arguments(case, [torch.float64] * len(dtypes))))


def computes(function, case, dtypes, setting):
    """Return whether torch computes a function in the dtype in which the table lets it compute."""
    row = function.row
    dtype = setting.low if row.rule == expansion.HALF else setting.high
    if row.rule == expansion.FOLLOW_SELF or row.name in having("source"):
        dtype = dtypes[0]
    return outcome(function.original, *arguments(case, [dtype] * len(dtypes))) is not None


def is_equal(one, other):
    if hasattr(torch, "view_as_real") and one.is_complex():
        one, other = (torch.view_as_real(each.conj().conj().clone()) for each in (one, other))
    return bool(((one == other) | ((one != one) & (other != other))).all())


def is_unchecked(row):
    return row.name.startswith(UNCHECKED)


def is_for(row, setting, dtypes):
    if row.lacks_half_kernel:
        return setting.low is not torch.float32
    if row.name in having("is_norm"):
        return dtypes[0] is setting.high
    if expansion.out_of_place(row.name) in having("source"):
        return len(set(dtypes)) > 1 and setting.low is not torch.float32
    is_listed = expansion.out_of_place(row.name) in having("refuses_mixed")
    is_product = row.rule == expansion.HALF and row.name not in having("promotes")
    return len(set(dtypes)) > 1 and (is_listed or is_product)


def dtype_of(row, dtypes, setting):
    return setting.high if row.lacks_half_kernel else dtypes[0]


def check_values(found, exact):
    for one, other in zip(found, exact):
        if one.is_floating_point() and other.is_floating_point() and one.numel():
            scale = max(1.0, float(other.abs().max()))
            assert float((one.double() - other).abs().max()) < 0.1 * scale


class FloatInside(nn.Module):
    """A model that makes float32 tensors in ``forward``, which meet its half weights and activations."""

    def __init__(self):
        super().__init__()
        self.stored = torch.fft.rfft  # torch's own, whatever replaces it later
        self.first, self.norm, self.conv = nn.Linear(4, 4), nn.LayerNorm(4), nn.Conv1d(1, 1, 3, padding=1)
        self.recurrent, self.attention = nn.GRU(4, 4), nn.MultiheadAttention(4, 1)
        self.last = nn.Linear(4, 1)

    def forward(self, x):
        x = self.first(x) + self.first(torch.ones(3, 4))
        x = self.norm(x.float()) @ torch.eye(4).to(x.dtype)
        x = x + self.conv(torch.linspace(0, 1, 12).view(3, 1, 4)).squeeze(1)
        x = self.recurrent(torch.tanh(x).float().unsqueeze(1))[0]
        x = x + self.attention(x, x.float(), x)[0]
        grid = torch.zeros(1, 3, 4, 2) + torch.linspace(-0.8, 0.8, 4).view(4, 1)
        x = x.squeeze(1) + F.grid_sample(x.view(1, 1, 3, 4), grid.float(), align_corners=False).view(3, 4)
        # Where half is not emulated, only functions that are called by their names accept it.
        transform = self.stored if emulated_half_arithmetic.setting() == "on" else torch.fft.rfft
        x = x + torch.fft.irfft(transform(x.to(self.last.weight.dtype)), n=4)
        return self.last(x) + torch.linalg.inv(torch.eye(3).to(self.last.weight.dtype))[:, :1]


def losses(level, is_forced):
    torch.manual_seed(0)
    model, x = FloatInside(), torch.randn(3, 4)
    found = []
    with forced(level if is_forced else None):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
        if level and not is_forced:
            model, optimizer = amp.initialize(model, optimizer, opt_level=level, verbosity=0)
        for _ in range(4):
            optimizer.zero_grad()
            loss = model(x).float().pow(2).mean()
            if level and not is_forced:
                with amp.scale_loss(loss, optimizer) as scaled_loss:
                    scaled_loss.backward()
            else:
                loss.backward()
            optimizer.step()
            found.append(float(loss))
    ampcompat.reset()
    return found


needs_forced_levels = pytest.mark.skipif(not is_supported(), reason="forced levels need torch 2.1")


@needs_forced_levels
@pytest.mark.parametrize("level, emulation", [*((level, "on") for level in OPT_LEVELS if level != "O0"), ("O5", "off")])
def test_a_model_that_makes_float32_tensors_trains_as_in_float32_forced_or_not(level, emulation, monkeypatch):
    monkeypatch.setenv(emulated_half_arithmetic.VARIABLE, emulation)
    monkeypatch.delenv("AMPCOMPAT_DTYPES", raising=False)
    monkeypatch.setenv("AMPCOMPAT_VERBOSITY", "0")
    try:
        torch.nn.LayerNorm(2).half()(torch.ones(1, 2).half())
    except RuntimeError:
        pytest.skip("this torch has no layer norm in float16 on a CPU")
    expected = losses(None, False)
    assert expected[-1] < expected[0]
    by_hand = losses(level, False)
    assert by_hand == pytest.approx(expected, rel=0.05)
    assert losses(level, True) == by_hand


@at_levels_with_half_weights
def test_a_float32_mask_of_half_attention_stays_float32(setting):
    if not hasattr(F, "scaled_dot_product_attention"):
        pytest.skip("this torch has no scaled_dot_product_attention")
    query = torch.randn(1, 2, 4, 8).to(setting.low)
    mask = torch.zeros(4, 4, dtype=setting.high)
    mask[0] = torch.finfo(setting.high).min  # all is masked: with -inf the result would be nan
    expected = outcome(F.scaled_dot_product_attention, (query, query, query, mask), {})
    with session_of(setting):
        initialize(setting, nn.Linear(1, 1))
        found = outcome(F.scaled_dot_product_attention, (query, query, query, mask), {})
        assert (found is None) == (expected is None)
        assert found is None or torch.equal(found[0], expected[0])
        if expected is not None:
            mixed = F.scaled_dot_product_attention(query.to(setting.high), query, value=query, attn_mask=mask)
            assert mixed.dtype is setting.high and torch.allclose(mixed, expected[0].to(setting.high), atol=0.02)


@at_levels_with_half_weights
def test_a_batch_norm_of_half_inputs_takes_float32_statistics_with_any_torch(setting):
    x, mean, variance = torch.randn(8, 2), torch.full((2,), 0.5), torch.full((2,), 4.0)
    with session_of(setting):
        initialize(setting, nn.Linear(1, 1))
        normalized = F.batch_norm(x.to(setting.low), mean.to(setting.high), variance.to(setting.high))
    assert normalized.dtype is setting.low
    assert torch.allclose(normalized.to(x.dtype), (x - mean) / 2, atol=0.02)


@at_levels_with_half_weights
@pytest.mark.parametrize(
    "norm",
    [
        lambda x, mean, variance: F.batch_norm(x, mean, variance, training=True),
        lambda x, mean, variance: F.batch_norm(x, running_var=variance, running_mean=mean, training=True),
        lambda x, mean, variance: F.instance_norm(x, mean, variance),
        lambda x, mean, variance: torch.batch_norm(x, None, None, mean, variance, True, 0.1, 1e-5, False),
    ],
)
def test_half_statistics_are_updated_by_float32_inputs(setting, norm):
    x = torch.randn(8, 2, 3) + 3
    with session_of(setting):
        initialize(setting, nn.Linear(1, 1))
        mean, variance = torch.zeros(2, dtype=setting.low), torch.ones(2, dtype=setting.low)
        norm(x.to(setting.high), mean, variance)
        assert torch.allclose(mean.to(x.dtype), 0.1 * x.mean((0, 2)), atol=0.01) and not (variance == 1).all()
        before = mean.clone(), variance.clone()
        F.batch_norm(x.to(setting.high), mean, variance)
        assert torch.equal(mean, before[0]) and torch.equal(variance, before[1])


@at_levels_with_half_weights
def test_products_are_computed_in_float32_where_a_script_asks_for_it(setting):
    with session_of(setting):
        initialize(setting, nn.Linear(1, 1))
        x = torch.full((1, 1), 1 + 2.0**-20, dtype=setting.high)
        one, exact = torch.ones(1, 1, dtype=setting.low), float(x)
        assert float(x @ one) == (exact if setting.low is torch.float32 else 1.0)
        with refused_calls.products_in_float32():
            assert float(x @ one) == exact and (x @ one).dtype is setting.high
        assert float(x @ one) == (exact if setting.low is torch.float32 else 1.0)


@at_levels_with_half_weights
@pytest.mark.skipif(not features.read().autocast_devices, reason="this torch has no autocast for the CPU")
def test_an_autocast_region_of_the_script_casts_by_itself(setting):
    def multiply():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert autocast_flags.region_dtype("cpu") is torch.bfloat16
            return F.linear(torch.full((1, 1), 1 / 3), torch.full((1, 1), 1 / 3, dtype=setting.low))

    expected = multiply()
    with session_of(setting):
        initialize(setting, nn.Linear(1, 1))
        assert multiply().dtype is expected.dtype is torch.bfloat16 and torch.equal(multiply(), expected)


@at_levels_with_half_weights
def test_compiled_code_accepts_them_too(setting, compiler_forgets):
    if not hasattr(torch, "compiler"):
        pytest.skip("this torch has no torch.compile, or that of 2.0, which does not tell that it traces")
    weight, x = torch.rand(3, 3).to(setting.low), torch.rand(2, 3).to(setting.high)

    def multiply(x):
        return torch.matmul(F.linear(x, weight), weight)

    with session_of(setting):
        initialize(setting, nn.Linear(1, 1))
        found = torch.compile(multiply, backend="eager", fullgraph=True)(x)
        assert found.dtype is setting.high and torch.equal(found, multiply(x))


@at_levels_with_half_weights
def test_gradients_have_the_dtypes_of_their_tensors(setting):
    with session_of(setting):
        initialize(setting, nn.Linear(1, 1))
        x = torch.rand(2, 3, dtype=setting.high, requires_grad=True)
        weight = torch.rand(4, 3).to(setting.low).requires_grad_()
        F.linear(x, weight).sum().backward()
        assert (x.grad.dtype, weight.grad.dtype) == (setting.high, setting.low)
        assert torch.allclose(x.grad, weight.detach().sum(0).to(setting.high).expand(2, 3))


def test_a_transform_of_float16_on_a_gpu_is_left_to_torch(monkeypatch):
    """CUDA has kernels for powers of two. Without a GPU, the tensor only says that it is on one."""

    if not hasattr(torch.Tensor, "as_subclass"):
        pytest.skip("this torch has no as_subclass")

    class OnGPU(torch.Tensor):
        @property
        def device(self):
            return torch.device("cuda")

    given = []
    wrapper = refused_calls._widened(lambda x: given.append(x.dtype), (HALF,), is_transform=True)
    monkeypatch.setattr(refused_calls, "_is_autocast", lambda device: False)
    wrapper(torch.zeros(2, dtype=torch.float16).as_subclass(OnGPU))
    wrapper(torch.zeros(2, dtype=torch.float16))
    assert given == [torch.float16, torch.float32]
    assert {row.owner for row in expansion.rows() if row.lacks_half_kernel} >= {FFT}
