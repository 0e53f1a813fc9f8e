"""``import apex`` in all the ways that scripts have, and the names that clients reach into."""

import importlib
import importlib.util
import inspect
import subprocess
import sys
import warnings
from collections import OrderedDict, namedtuple

import pytest
import torch

import ampcompat
from ampcompat import amp as ampcompat_amp

Pair = namedtuple("Pair", "left right")

pytestmark = pytest.mark.usefixtures("alias")


def prepared(opt_level="O2", **keywords):
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return ampcompat_amp.initialize(model, optimizer, opt_level=opt_level, verbosity=0, **keywords)


def test_importing_apex_is_cheap_and_silent():
    source = "import sys, apex; print(sorted({'torch', 'ampcompat'} & set(sys.modules)), 'amp' in dir(apex))"
    done = subprocess.run([sys.executable, "-c", source], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.stdout.decode().strip() == "[] True"


@pytest.mark.parametrize(
    "statement",
    [
        "import apex; amp = apex.amp",
        "from apex import amp",
        "import apex.amp as amp",
        "import apex.amp; amp = apex.amp",
        "import importlib; amp = importlib.import_module('apex.amp')",
        "from apex.amp import *; import apex.amp as amp",
    ],
)
def test_every_way_to_import_amp_gives_the_same_functions(statement):
    names = {}
    exec(statement, names)
    for name in set(ampcompat_amp.__all__) - {"lists"}:
        assert getattr(names["amp"], name) is getattr(ampcompat_amp, name)


def test_probes_find_it():
    from apex import amp

    assert importlib.util.find_spec("apex") is not None
    assert importlib.util.find_spec("apex.amp") is not None
    assert list(amp.__path__)
    assert "state_dict" in amp.__dict__
    assert list(inspect.signature(amp.initialize).parameters)[:4] == ["models", "optimizers", "enabled", "opt_level"]
    if sys.version_info >= (3, 8):
        from importlib.metadata import metadata, version

        assert version("apex") == "0.1" and "ampcompat" in metadata("apex")["Summary"]


def test_apex_and_ampcompat_share_one_session():
    from apex import amp

    model, optimizer = prepared("O0", loss_scale=8.0)
    with amp.scale_loss(model(torch.ones(3, 2)).sum(), optimizer) as loss:
        loss.backward()
    assert amp.state_dict() == ampcompat_amp.state_dict() != {}
    assert amp._amp_state.loss_scalers is ampcompat.current().scalers


def test_applier_casts_tensors_in_containers_only():
    from apex.amp._initialize import applier

    tensor = torch.ones(1)
    value = {"a": [tensor, "text", 3], "b": Pair(tensor, (tensor, None))}
    doubled = applier(value, lambda found: found * 2)
    assert doubled["a"][0].item() == 2 and doubled["a"][1:] == ["text", 3]
    assert type(doubled["b"]) is Pair and doubled["b"].right[0].item() == 2 and doubled["b"].right[1] is None
    assert applier(OrderedDict(a=1), None) == {"a": 1}


def test_small_questions_are_answered():
    from apex.amp import compat, opt, rnn_compat, utils

    assert compat.filter_attrs(torch, ["add", "no_such_function"]) == ["add"]
    assert compat.is_floating_point(torch.ones(1)) and not compat.is_floating_point(torch.tensor(1))
    assert compat.scalar_python_val(torch.tensor(2.0)) == compat.scalar_python_val(2.0) == 2.0
    assert not rnn_compat.has_old_rnns()
    assert utils.is_fp_tensor([torch.ones(1), (torch.ones(1),)]) and not utils.is_fp_tensor([torch.tensor(1)])
    assert utils.type_string(torch.ones(1)) == "FloatTensor"
    with pytest.raises(RuntimeError, match="amp.scale_loss"):
        opt.OptimWrapper(None, None, 1)


def test_amp_does_not_warn_and_a_script_can_ignore_the_warnings_of_apex():
    import apex

    assert issubclass(apex.DeprecatedFeatureWarning, FutureWarning) and "DeprecatedFeatureWarning" in dir(apex)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", category=apex.DeprecatedFeatureWarning)
        model = torch.nn.Linear(1, 1)
        apex.amp.initialize(model, torch.optim.SGD(model.parameters(), 1.0), verbosity=0)
