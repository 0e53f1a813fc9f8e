"""Specification 1: what ``amp.initialize`` takes, gives back, prints and refuses."""

import inspect
import types
import warnings

import pytest
import torch
from helpers import loops
from helpers.networks import (
    begin,
    each_setting,
    initialize,
    make_batch,
    make_network,
    settings_at,
    train_step,
)

import ampcompat
from ampcompat import amp

SIGNATURE = [
    ("models", inspect.Parameter.empty),
    ("optimizers", None),
    ("enabled", True),
    ("opt_level", "O1"),
    ("cast_model_type", None),
    ("patch_torch_functions", None),
    ("keep_batchnorm_fp32", None),
    ("master_weights", None),
    ("loss_scale", None),
    ("cast_model_outputs", None),
    ("num_losses", 1),
    ("verbosity", 1),
    ("min_loss_scale", None),
    ("max_loss_scale", 2.0**24),
]

#: Options are tested with the levels' own dtypes on any torch, since nothing is computed in them here.
in_half = pytest.mark.usefixtures("levels_own_dtypes")

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
#: cast_model_type, patch_torch_functions, patch type, keep_batchnorm_fp32, master_weights, loss_scale
DEFAULTS = {
    "O0": (F32, False, None, None, False, 1.0),
    "O1": (None, True, F16, None, None, "dynamic"),
    "O2": (F16, False, None, True, True, "dynamic"),
    "O3": (F16, False, None, False, False, 1.0),
    "O4": (None, True, BF16, None, None, 1.0),
    "O5": (BF16, False, None, True, True, 1.0),
}
OPTIONS = (
    "cast_model_type",
    "patch_torch_functions",
    "patch_torch_functions_type",
    "keep_batchnorm_fp32",
    "master_weights",
    "loss_scale",
)


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def quiet(models, optimizers=None, **options):
    return amp.initialize(models, optimizers, verbosity=0, **options)


# -- signature and shapes ----------------------------------------------------------------------------------------------


def test_keywords_and_defaults_are_apexs_in_apexs_order():
    positional = [
        (name, parameter.default)
        for name, parameter in inspect.signature(amp.initialize).parameters.items()
        if parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
    ]
    assert positional == SIGNATURE


def test_clients_that_read_the_defaults_in_the_old_way_find_them():
    spec = inspect.getfullargspec(amp.initialize)
    assert dict(zip(spec.args[-len(spec.defaults) :], spec.defaults)) == dict(SIGNATURE[1:])
    assert inspect.getfullargspec(amp.scale_loss).args[:3] == ["loss", "optimizers", "loss_id"]


def test_all_fourteen_keywords_can_be_given_at_once(level):
    model = make_network()
    given = dict(SIGNATURE[2:], opt_level=level, verbosity=0)
    assert amp.initialize(models=model, optimizers=None, **given) is model


def test_options_can_be_given_by_position():
    models = [torch.nn.Linear(2, 2) for _ in range(5)]
    optimizers = [sgd(models[0]), sgd(models[1])]
    amp.initialize(models, optimizers, True, "O1", None, None, None, None, None, None, 3, 0)
    assert len(amp.state_dict()) == 3


@pytest.mark.parametrize("many_models", [False, True])
@pytest.mark.parametrize("optimizers", ["none", "one", "many"])
def test_return_mirrors_the_shapes_of_what_came_in(level, many_models, optimizers):
    models = [make_network(), make_network()] if many_models else make_network()
    each = models if many_models else [models]
    if optimizers == "none":
        assert quiet(models, opt_level=level) is models or quiet(models, opt_level=level) == models
        return
    given = sgd(each[0]) if optimizers == "one" else [sgd(model) for model in each]
    returned_models, returned_optimizers = quiet(models, given, opt_level=level)
    assert type(returned_models) is type(models) and type(returned_optimizers) is type(given)
    assert [id(m) for m in (returned_models if many_models else [returned_models])] == [id(m) for m in each]
    listed = [returned_optimizers] if optimizers == "one" else returned_optimizers
    assert [id(o) for o in listed] == [id(o) for o in ([given] if optimizers == "one" else given)]


def test_an_empty_list_of_optimizers_comes_back_as_one():
    model = make_network()
    assert quiet(model, []) == (model, [])


@pytest.mark.parametrize(
    "models, optimizers, expected",
    [
        ("model", None, "torch.nn.Module"),
        (None, None, "torch.nn.Module"),
        ({"a": torch.nn.Linear(1, 1)}, None, "torch.nn.Module"),
        ([torch.nn.Linear(1, 1), 3], None, "torch.nn.Module"),
        (torch.nn.Linear(1, 1), "optimizer", "optimizer"),
        (torch.nn.Linear(1, 1), [None], "optimizer"),
        (torch.nn.Linear(1, 1), torch.nn.Linear(1, 1), "optimizer"),
    ],
)
def test_anything_else_is_a_type_error_naming_what_was_expected(models, optimizers, expected):
    with pytest.raises(TypeError, match=expected):
        quiet(models, optimizers)


def test_swapped_arguments_are_an_error_that_says_which_comes_first():
    model = make_network()
    with pytest.raises(TypeError, match=r"models is of type SGD\. The model comes first, then the optimizer\."):
        amp.initialize(sgd(model), model)
    with pytest.raises(TypeError, match=r"optimizers is of type \w+\. The model comes first, then the optimizer\."):
        amp.initialize(model, model)


# -- levels and overrides ----------------------------------------------------------------------------------------------


@in_half
def test_defaults_of_a_level(level):
    quiet(make_network(), opt_level=level)
    properties = amp._amp_state.opt_properties
    assert tuple(getattr(properties, name) for name in OPTIONS) == DEFAULTS[level]
    assert properties.opt_level == level and properties.enabled is True


@pytest.mark.parametrize("given, expected", [("128.0", 128.0), (128, 128.0), (64.0, 64.0), ("dynamic", "dynamic")])
def test_loss_scale_overrides_the_level_also_as_a_string(level, given, expected):
    quiet(make_network(), opt_level=level, loss_scale=given)
    assert amp._amp_state.opt_properties.loss_scale == expected
    scaler = amp._amp_state.loss_scalers[0]
    assert scaler.dynamic == (expected == "dynamic")
    assert scaler.loss_scale() == (65536.0 if expected == "dynamic" else expected)


@pytest.mark.parametrize("given, kept", [("True", True), ("False", False), (True, True), (False, False)])
@in_half
@pytest.mark.parametrize("weights_level", ["O2", "O3", "O5"])
def test_keep_batchnorm_overrides_the_level_also_as_a_string(weights_level, given, kept):
    model = make_network()
    quiet(model, opt_level=weights_level, keep_batchnorm_fp32=given)
    assert amp._amp_state.opt_properties.keep_batchnorm_fp32 is kept
    assert (model[1].weight.dtype is torch.float32) == kept
    assert (model[1].running_mean.dtype is torch.float32) == kept


@in_half
@pytest.mark.parametrize("weights_level", ["O2", "O3", "O5"])
@pytest.mark.parametrize("masters", [True, False])
def test_master_weights_override_the_level(weights_level, masters):
    model = make_network()
    optimizer = sgd(model)
    quiet(model, optimizer, opt_level=weights_level, master_weights=masters)
    low = model[0].weight.dtype
    assert low is not torch.float32
    assert optimizer.param_groups[0]["params"][0].dtype is (torch.float32 if masters else low)


def test_cast_model_type_overrides_the_level():
    model = make_network()
    quiet(model, opt_level="O2", cast_model_type=torch.bfloat16)
    assert model[0].weight.dtype is torch.bfloat16


def test_o1_without_patched_functions_casts_nothing():
    quiet(make_network(), opt_level="O1", patch_torch_functions=False)
    assert torch.mm(torch.ones(2, 2), torch.ones(2, 2)).dtype is torch.float32


@pytest.mark.parametrize(
    "at, override, why",
    [
        ("O1", {"master_weights": True}, "master"),
        ("O4", {"master_weights": True}, "master"),
        ("O1", {"keep_batchnorm_fp32": True}, "batch norm"),
        ("O1", {"keep_batchnorm_fp32": "False"}, "batch norm"),
        ("O4", {"keep_batchnorm_fp32": False}, "batch norm"),
        ("O1", {"cast_model_type": torch.float16}, "O2"),
        ("O4", {"cast_model_type": torch.bfloat16}, "O5"),
        ("O0", {"patch_torch_functions": True}, "O1"),
        ("O2", {"patch_torch_functions": True}, "O1"),
        ("O3", {"patch_torch_functions": True}, "O1"),
        ("O5", {"patch_torch_functions": True}, "O4"),
    ],
)
def test_an_override_that_makes_no_sense_is_an_error_that_says_why(at, override, why):
    with pytest.raises(RuntimeError, match=why) as raised:
        quiet(make_network(), opt_level=at, **override)
    assert at in str(raised.value) and next(iter(override)) in str(raised.value)


def test_a_model_without_optimizers_needs_no_losses():
    quiet(make_network(), num_losses=0)
    assert amp.state_dict() == {}
    model = make_network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(RuntimeError, match="num_losses must be a whole number from 1 up, not 0"):
        quiet(model, optimizer, num_losses=0)
    quiet(model, optimizer)
    assert list(amp.state_dict()) == ["loss_scaler0"]


@pytest.mark.parametrize("unknown", ["02", "o1", "O6", "O", 1, None])
def test_an_unknown_level_lists_the_levels_and_says_that_it_is_the_letter(unknown):
    with pytest.raises(RuntimeError) as raised:
        quiet(make_network(), opt_level=unknown)
    message = str(raised.value)
    assert all(level in message for level in DEFAULTS)
    assert "letter O" in message and "zero" in message


@pytest.mark.parametrize(
    "options",
    [
        {"loss_scale": "large"},
        {"loss_scale": 0.0},
        {"loss_scale": float("nan")},
        {"loss_scale": "-1"},
        {"min_loss_scale": -2.0},
        {"min_loss_scale": 4.0, "max_loss_scale": 2.0},
        {"max_loss_scale": None},
        {"growth_factor": 1.0},
        {"backoff_factor": 1.0},
        {"growth_interval": 0},
        {"hysteresis": 1.5},
        {"init_scale": "many"},
        {"max_skips": 0},
        {"allow_half_model": "yes"},
        {"num_losses": -1},
        {"num_losses": 1.5},
        {"cast_model_outputs": "float32"},
        {"opt_level": "O2", "keep_batchnorm_fp32": "yes"},
        {"opt_level": "O2", "cast_model_type": "half"},
        {"opt_level": "O2", "cast_model_type": torch.int32},
        {"opt_level": "O2", "free_half_grads": "yes"},
    ],
)
def test_an_option_of_the_wrong_kind_is_an_error_that_names_it(options):
    with pytest.raises(RuntimeError) as raised:
        quiet(make_network(), **options)
    assert any(name in str(raised.value) for name in options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
@each_setting
def test_cast_model_outputs_casts_outputs_at_any_level(setting, dtype, session):
    model = make_network(setting)
    initialize(setting, model, cast_model_outputs=dtype)
    assert model(make_batch(setting)[0]).dtype is dtype


# -- what it prints ----------------------------------------------------------------------------------------------------


@in_half
def test_prints_the_level_its_defaults_and_the_options_after_overrides(level, capsys):
    amp.initialize(make_network(), opt_level=level, loss_scale=32.0)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"Selected optimization level {level}: ") and len(lines[0]) > 25
    default, after = [index for index, line in enumerate(lines) if line.startswith("loss_scale ")]
    assert lines[default] == "{:22} : {}".format("loss_scale", DEFAULTS[level][-1])
    assert lines[after] == "{:22} : {}".format("loss_scale", 32.0)
    for name, value in zip(OPTIONS[:2], DEFAULTS[level]):
        assert lines.count(f"{name:22} : {value}") == 2
    assert any(line.startswith("Defaults") for line in lines)
    assert any("after" in line and "overrides" in line for line in lines)


def test_verbosity_0_prints_nothing_at_all(level, capfd):
    model = make_network()
    optimizer = sgd(model)
    amp.initialize(model, optimizer, opt_level=level, loss_scale="dynamic", verbosity=0)
    loops.step(model(make_batch()[0]).sum() * float("inf"), optimizer)
    assert amp.step_was_skipped(optimizer)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("enabled, says", [("O2", True), (True, False), (1, False)])
def test_a_level_in_the_place_of_enabled_is_named(enabled, says, capsys):
    amp.initialize(torch.nn.Linear(1, 1), None, enabled, "O0")
    assert ("Write opt_level='O2'" in capsys.readouterr().out) is says


def test_other_ranks_than_the_first_are_silent(capsys, tmp_path):
    if not torch.distributed.is_available():
        pytest.skip("this torch has no torch.distributed")
    # A group of two of which only the second exists: enough to have a rank, and nothing here communicates.
    backend = "fake"
    reason = "this torch has no process group without its peers"
    pytest.importorskip("torch.testing._internal.distributed.fake_pg", reason=reason)
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group(backend, rank=1, world_size=2, store=store)
    try:
        amp.initialize(make_network(), verbosity=1)
    finally:
        torch.distributed.destroy_process_group()
    assert capsys.readouterr().out == ""


# -- what it refuses ---------------------------------------------------------------------------------------------------


def test_a_wrapped_model_is_refused_with_the_advice_to_wrap_it_after(level):
    with pytest.raises(RuntimeError, match="DataParallel.*wrap"):
        quiet(torch.nn.DataParallel(make_network()), opt_level=level)


@pytest.mark.parametrize("what", ["param", "buffer"])
@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16])
def test_a_half_model_is_refused_unless_allowed(level, what, half):
    model = make_network()
    if what == "param":
        model[3].weight.data = model[3].weight.data.to(half)
    else:
        model[1].running_var = model[1].running_var.to(half)
    with pytest.raises(RuntimeError, match=r"you don't need to call \.half\(\).*allow_half_model=True"):
        quiet(model, opt_level=level)
    amp._amp_state.allow_incoming_model_not_fp32 = True
    assert quiet(model, opt_level=level) is model


def test_an_optimizer_of_another_initialize_is_refused(level):
    model, other = make_network(), make_network()
    optimizer = sgd(model)
    quiet(model, optimizer, opt_level=level)
    with pytest.raises(RuntimeError, match="initialize before"):
        quiet(other, optimizer, opt_level=level)


def test_an_fp16_optimizer_is_refused(level):
    class FP16_Optimizer:
        def __init__(self, inner):
            self.optimizer, self.param_groups, self.state = inner, inner.param_groups, inner.state

        def step(self):
            """Do nothing."""

        zero_grad = step

    model = make_network()
    with pytest.raises(RuntimeError, match="FP16_Optimizer"):
        quiet(model, FP16_Optimizer(sgd(model)), opt_level=level)


# -- again -------------------------------------------------------------------------------------------------------------


@each_setting
def test_the_same_model_and_optimizer_again_change_nothing(setting, session):
    model, batch = make_network(setting), make_batch(setting)
    optimizer = torch.optim.Adam(model.parameters())
    initialize(setting, model, optimizer)
    train_step(model, optimizer, batch)
    step, state = optimizer.step, amp.state_dict()
    masters = [id(param) for param in amp.master_params(optimizer)]
    assert initialize(setting, model, optimizer) == (model, optimizer)
    assert optimizer.step is step or optimizer.step == step
    assert amp.state_dict() == state
    assert [id(param) for param in amp.master_params(optimizer)] == masters
    train_step(model, optimizer, batch)


@pytest.mark.parametrize(
    "options",
    [dict(keep_fp32=["3"]), dict(cast_model_outputs=torch.float64), dict(init_scale=4.0), dict(growth_interval=5)],
    ids=lambda options: "".join(options),
)
def test_options_that_the_same_model_and_optimizer_again_cannot_change_are_named(level, options, capsys):
    model = make_network()
    optimizer = sgd(model)
    amp.initialize(model, optimizer, opt_level=level, verbosity=0)
    amp.initialize(model, optimizer, opt_level=level, **options)
    (name,) = options
    assert f"These options are ignored: {name}." in capsys.readouterr().out


@pytest.mark.parametrize("again", [True, False], ids=["with the same options", "without options"])
def test_the_same_model_and_optimizer_again_print_nothing(level, again, capsys):
    model = make_network()
    optimizer = sgd(model)
    options = dict(keep_fp32=["3", model[0]], cast_model_outputs=torch.float64, growth_interval=5)
    amp.initialize(model, optimizer, opt_level=level, **options)
    capsys.readouterr()
    amp.initialize(model, optimizer, opt_level=level, num_losses=2, **(options if again else {}))
    assert capsys.readouterr().out == ""


@each_setting
def test_other_models_later_wrap_nothing_twice_and_leave_earlier_ones_working(setting, session):
    batch, trained = make_batch(setting), []
    for fold in range(3):
        model = make_network(setting, seed=fold)
        optimizer = sgd(model)
        initialize(setting, model, optimizer, loss_scale=128.0)
        trained.append((model, optimizer))
        if fold == 0:
            depth = deepest_wrapping()
        for each in trained:
            first = train_step(*each, batch=batch)
            assert train_step(*each, batch=batch) < first
    assert deepest_wrapping() == depth


@each_setting
def test_a_known_pair_comes_again_beside_a_new_one(setting, session):
    batch, first, second = make_batch(setting), make_network(setting, seed=0), make_network(setting, seed=1)
    of_first, of_second = sgd(first), sgd(second)
    initialize(setting, first, of_first, loss_scale=128.0)
    train_step(first, of_first, batch=batch)
    masters = [id(param) for param in amp.master_params(of_first)]
    initialize(setting, [first, second], [of_first, of_second], loss_scale=128.0)
    assert [id(param) for param in amp.master_params(of_first)] == masters
    for each in ((first, of_first), (second, of_second)):
        before = train_step(*each, batch=batch)
        assert train_step(*each, batch=batch) < before


@each_setting
def test_a_known_optimizer_with_a_new_model_in_place_of_its_own_is_refused(setting, session):
    first, second = make_network(setting, seed=0), make_network(setting, seed=1)
    optimizer = sgd(first)
    initialize(setting, first, optimizer, loss_scale=128.0)
    optimizer.param_groups[0]["params"][:] = list(second.parameters())
    with pytest.raises(RuntimeError, match="went through amp.initialize before"):
        initialize(setting, second, optimizer, loss_scale=128.0)


def deepest_wrapping():
    """Count how many functions are wrapped around each other in torch's namespaces, at most."""
    deepest = 0
    for owner in (torch, torch.Tensor, torch.nn.functional):
        for function in list(vars(owner).values()):
            depth = 0
            while isinstance(function, types.FunctionType) and "__wrapped__" in vars(function):
                function, depth = function.__wrapped__, depth + 1
            deepest = max(deepest, depth)
    return deepest


@each_setting
def test_the_same_model_again_with_more_losses_gets_scalers_for_them(setting, session):
    (model, optimizer), batch = begin(setting, 0.1), make_batch(setting)
    train_step(model, optimizer, batch)
    initialize(setting, model, optimizer, loss_scale=8.0, num_losses=2)
    assert [state["unskipped"] for state in amp.state_dict().values()] == [1, 0]
    train_step(model, optimizer, batch, loss_id=1)


@in_half
def test_disabled_then_enabled_is_enabled_and_enabled_then_disabled_stays_so(capsys):
    model = make_network()
    amp.initialize(model, enabled=False)
    amp.initialize(model, opt_level="O2", verbosity=0)
    assert model[0].weight.dtype is torch.float16 and len(amp.state_dict()) == 1
    other = make_network()
    amp.initialize(other, enabled=False)
    assert other[0].weight.dtype is torch.float32 and len(amp.state_dict()) == 1


def test_lazy_params_are_refused_with_what_to_do(level):
    lazy = getattr(torch.nn, "LazyLinear", None)
    if lazy is None:
        pytest.skip("this torch has no lazy modules")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that lazy modules are new
        model = lazy(3)
    with pytest.raises(RuntimeError, match="run one batch"):
        quiet(model, opt_level=level)


def test_a_session_option_wins_over_the_script():
    with ampcompat.session(opt_level="O0", verbosity=0):
        amp.initialize(make_network(), opt_level="O2")
        assert amp._amp_state.opt_properties.opt_level == "O0"


@settings_at("O2", "O3", "O5")
def test_a_cast_model_that_comes_again_with_other_options_is_told_what_to_do(setting, session):
    model = make_network(setting)
    initialize(setting, model)
    with pytest.raises(RuntimeError, match="reset"):
        initialize(setting, model, loss_scale=64.0)
    assert next(model.parameters()).dtype is setting.low
