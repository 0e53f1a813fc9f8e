"""``_amp_state`` and ``amp.lists``: live views, under every spelling that clients use."""

import importlib

import pytest
import torch
from helpers import precision

from ampcompat import amp as ampcompat_amp
from ampcompat.engine.session import process_state

SPELLINGS = [
    "from apex.amp._amp_state import _amp_state as found",
    "from apex import amp; found = amp._amp_state",
    "from apex import amp; found = amp._amp_state._amp_state",
    "import apex.amp._amp_state as found",
    "from ampcompat import amp; found = amp._amp_state",
]

pytestmark = pytest.mark.usefixtures("alias")


@pytest.fixture(params=SPELLINGS)
def amp_state(request):
    names = {}
    exec(request.param, names)
    return names["found"]


def initialize(**keywords):
    model = torch.nn.Linear(2, 1)
    keywords.setdefault("verbosity", 0)
    return ampcompat_amp.initialize(model, torch.optim.SGD(model.parameters(), lr=0.1), **keywords)


def test_before_initialize_it_has_no_session_to_show(amp_state):
    for name in ("opt_properties", "loss_scalers", "handle"):
        assert not hasattr(amp_state, name)
    assert amp_state.verbosity == 1
    assert amp_state.allow_incoming_model_not_fp32 is False and amp_state.hard_override is False


def test_after_initialize_it_shows_the_session(amp_state):
    initialize(opt_level="O2", loss_scale=128.0, num_losses=2)
    options = amp_state.opt_properties
    assert (options.enabled, options.opt_level, options.cast_model_type) == (True, "O2", precision.LOW)
    assert options.options["master_weights"] is True and options.options["keep_batchnorm_fp32"] is True
    assert options.loss_scale == 128.0 and options.patch_torch_functions is False
    assert [scaler.loss_scale() for scaler in amp_state.loss_scalers] == [128.0, 128.0]
    assert amp_state.loss_scalers[0]._loss_scale == 128.0 and amp_state.loss_scalers[0]._unskipped == 0
    assert amp_state.loss_scalers[0].dynamic is False
    with pytest.raises(RuntimeError, match="call|use|Use|Call"):
        amp_state.handle.scale_loss(torch.ones(()), None).__enter__()
    assert not hasattr(options, "no_such_option")


def test_it_shows_that_amp_is_disabled(amp_state):
    initialize(enabled=False)
    assert amp_state.opt_properties.enabled is False
    assert list(amp_state.loss_scalers) == []


def test_the_handle_is_one_object_in_a_session(amp_state):
    made = ampcompat_amp.init()
    assert amp_state.handle is made and not hasattr(amp_state, "loss_scalers")
    initialize(opt_level="O1")
    assert amp_state.handle is made
    made._deactivate()
    process_state.close_all()
    initialize(opt_level="O2")
    assert amp_state.handle is amp_state.handle is not made


def test_what_a_script_assigns_before_initialize_is_shown_until_then(amp_state):
    handle, scalers = object(), []
    amp_state.handle, amp_state.loss_scalers, amp_state.opt_properties = handle, scalers, ampcompat_amp.Properties()
    amp_state.loss_scalers.append(1)
    amp_state.opt_properties.enabled = False
    assert amp_state.handle is handle and scalers == [1] and amp_state.opt_properties.enabled is False
    initialize(opt_level="O2")
    assert amp_state.handle is not handle and amp_state.loss_scalers is not scalers
    assert amp_state.opt_properties.enabled is True


@pytest.mark.parametrize("name", ["handle", "opt_properties"])
def test_what_initialize_has_decided_cannot_be_assigned(amp_state, name):
    initialize(opt_level="O1")
    with pytest.raises(RuntimeError, match="amp.initialize"):
        setattr(amp_state, name, None)


def test_verbosity_can_be_read_and_set(amp_state, capsys):
    amp_state.verbosity = 0  # nothing to set yet, as in Apex, where initialize overwrites it
    initialize(verbosity=1)
    assert amp_state.verbosity == 1
    capsys.readouterr()
    amp_state.maybe_print("heard", True)
    amp_state.verbosity = 0
    assert amp_state.verbosity == 0 and process_state.current().verbosity == 0
    amp_state.maybe_print("not heard")
    assert capsys.readouterr().out == "heard\n"


def test_warn_or_err_raises_unless_overridden(amp_state):
    with pytest.raises(RuntimeError, match="a mistake"):
        amp_state.warn_or_err("a mistake")
    amp_state.hard_override = True
    assert process_state.hard_override is True
    with pytest.warns(UserWarning, match="a mistake"):
        amp_state.warn_or_err("a mistake")


def test_options_are_to_read(amp_state):
    initialize(opt_level="O2")
    with pytest.raises(RuntimeError, match="amp.initialize"):
        amp_state.opt_properties.loss_scale = 2.0


@pytest.mark.parametrize("name", ["functional_overrides", "torch_overrides", "tensor_overrides"])
def test_op_lists_can_be_edited_under_every_module_name(name):
    from apex import amp

    module = importlib.import_module("apex.amp.lists." + name)
    assert module is getattr(amp.lists, name)
    assert module.FP16_FUNCS is getattr(process_state.lists, name).FP16_FUNCS
    module.FP32_FUNCS.append("appended")
    assert "appended" in getattr(process_state.lists, name).FP32_FUNCS
    module.FP32_FUNCS = ["replaced"]
    assert getattr(process_state.lists, name).FP32_FUNCS == ["replaced"]
    assert "FP16_FUNCS" in dir(module) and not hasattr(module, "NO_SUCH_LIST")
