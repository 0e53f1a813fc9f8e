"""Another apex on the path: NVIDIA's of today, origin compiled parts are used; PyPI's web toolkit."""

import importlib
import importlib.util
import os
import sys

import pytest
import torch
from helpers import loops
from helpers.processes import ROOT, RUN, environment, python

from ampcompat.apex import install, nvidia_apex, optimizers

#: A package with the layout of today's Apex: no amp, no parallel, no fp16_utils.
FILES = {
    "apex/__init__.py": "from . import optimizers, normalization\ndef nvidia_only(value):\n    return value\n",
    "apex/_autocast_utils.py": "origin = 'nvidia'\n",
    "apex/optimizers/__init__.py": "from .fused_adam import FusedAdam\nfrom .fused_lars import FusedLARS\n",
    "apex/optimizers/fused_lars.py": "class FusedLARS:\n    origin = 'nvidia'\n",
    "apex/contrib/optimizers/__init__.py": """
from apex.contrib.optimizers import FusedSGD
from .distributed_fused_adam import DistributedFusedAdam
""",
    "apex/contrib/optimizers/distributed_fused_adam.py": "class DistributedFusedAdam:\n    origin = 'nvidia'\n",
    "apex/fused_dense/__init__.py": "raise RuntimeError('no GPU')\n",
    "apex/optimizers/fused_adam.py": """
import torch
from apex.multi_tensor_apply import multi_tensor_applier

class FusedAdam(torch.optim.Adam):
    origin = "nvidia"

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        import amp_C
        self.multi_tensor_adam = amp_C.multi_tensor_adam
""",
    "apex/multi_tensor_apply/__init__.py": """
class Applier:
    origin, available = "nvidia", True

multi_tensor_applier = Applier()
""",
    "apex/normalization/__init__.py": "from .fused_layer_norm import FusedLayerNorm\n",
    "apex/normalization/fused_layer_norm.py": """
import torch
import importlib
from apex._autocast_utils import origin as _whose

class FusedLayerNorm(torch.nn.LayerNorm):
    origin = _whose

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        importlib.import_module("fused_layer_norm_cuda")
""",
    "apex/mlp/__init__.py": "import mlp_cuda\nfrom . import parts_of_it\nraise ImportError('of another torch')\n",
    "apex/mlp/parts_of_it.py": "",
    "apex/contrib/__init__.py": "",
    "apex/contrib/multihead_attn/__init__.py": "origin = 'nvidia'\n",
    "apex/contrib/xentropy/__init__.py": "import xentropy_cuda\n",
    "apex/transformer/__init__.py": "origin = 'nvidia'\n",
    "amp_C.py": "origin = 'nvidia'\ndef multi_tensor_adam():\n    pass\n",
    "fused_layer_norm_cuda.py": "",
    "mlp_cuda.py": "",
}
#: As above without the CUDA extensions.
UNCOMPILED = {name: text for name, text in FILES.items() if name.startswith("apex/")}
WEB_TOOLKIT = {"apex/__init__.py": "raise RuntimeError('loaded')\n", "apex/models.py": "", "apex/views.py": ""}


def write(folder, files):
    for name, text in files.items():
        path = os.path.join(str(folder), *name.split("/"))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as file:
            file.write(text)
    return str(folder)


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Return a function that puts files into a folder at the end of the path, and ampcompat in force."""
    monkeypatch.setattr(nvidia_apex, "_has_gpu", lambda: True)
    loaded = set(sys.modules)

    def put(files):
        monkeypatch.syspath_prepend(write(tmp_path, files))
        install.install()

    yield put
    install.uninstall()
    for name in set(sys.modules) - loaded:
        if name.endswith("_cuda"):
            del sys.modules[name]


def test_compiled_parts_are_nvidias_under_the_same_names(installed):
    installed(FILES)
    import amp_C
    from apex.contrib import multihead_attn
    from apex.multi_tensor_apply import multi_tensor_applier
    from apex.normalization import FusedLayerNorm
    from apex.optimizers import FusedAdam
    from apex.optimizers.fused_adam import FusedAdam as again

    assert FusedAdam.origin == FusedLayerNorm.origin == multi_tensor_applier.origin == "nvidia"
    assert FusedAdam is again and amp_C.origin == multihead_attn.origin == "nvidia"
    assert FusedAdam([torch.nn.Parameter(torch.ones(1))]).multi_tensor_adam is amp_C.multi_tensor_adam
    assert FusedLayerNorm(3).weight.shape == (3,)
    assert importlib.import_module("apex.transformer").origin == "nvidia"


def test_names_that_nvidia_apex_lacks_come_from_ampcompat(installed):
    installed(FILES)
    import apex

    from ampcompat import amp
    from ampcompat.apex import fp16_utils, normalization, parallel

    assert apex.amp.initialize is amp.initialize
    assert apex.parallel.LARC is parallel.LARC and apex.fp16_utils.network_to_half is fp16_utils.network_to_half
    assert apex.optimizers.FusedLAMB is optimizers.FusedLAMB
    assert apex.normalization.FusedRMSNorm is normalization.FusedRMSNorm
    assert importlib.import_module("apex.optimizers.fused_lamb").FusedLAMB is optimizers.FusedLAMB
    assert apex.contrib.xentropy.SoftmaxCrossEntropyLoss.__module__.startswith("ampcompat")
    assert apex.nvidia_only("value") == "value"
    assert not hasattr(apex, "no_such_name")


def test_a_part_that_does_not_load_comes_from_ampcompat(installed):
    installed(FILES)
    from apex.mlp import MLP

    assert MLP.__module__.startswith("ampcompat") and "apex.mlp.parts_of_it" not in sys.modules
    assert "ampcompat" in sys.modules["apex.mlp"].__file__
    assert importlib.import_module("apex.mlp.mlp").MLP is MLP


@pytest.mark.parametrize("case", ["no extensions", "no GPU", "switched off"])
def test_where_nvidias_parts_do_not_work_ampcompats_are_used(installed, monkeypatch, case):
    if case == "no GPU":
        monkeypatch.setattr(nvidia_apex, "_has_gpu", lambda: False)
    if case == "switched off":
        monkeypatch.setenv(nvidia_apex.VARIABLE, "off")
    installed(UNCOMPILED if case == "no extensions" else FILES)
    import amp_C
    import apex

    assert apex.optimizers.FusedAdam is optimizers.FusedAdam
    assert apex.normalization.FusedLayerNorm.__module__.startswith("ampcompat")
    assert apex.multi_tensor_apply.multi_tensor_applier.available and not hasattr(amp_C, "origin")
    there = importlib.util.find_spec("apex.transformer") is not None
    assert there == (case != "switched off")


@pytest.mark.parametrize("has_gpu", [True, False], ids=["GPU", "no GPU"])
def test_names_that_ampcompat_lacks_are_nvidias_with_and_without_a_gpu(installed, monkeypatch, has_gpu):
    monkeypatch.setattr(nvidia_apex, "_has_gpu", lambda: has_gpu)
    installed(FILES)
    import apex
    from apex.contrib.optimizers import DistributedFusedAdam, FusedSGD
    from apex.optimizers import FusedLARS
    from apex.optimizers import FusedSGD as FusedSGDAgain

    assert FusedLARS.origin == DistributedFusedAdam.origin == "nvidia" and apex.optimizers.FusedLARS is FusedLARS
    assert FusedSGD.__module__.startswith("ampcompat") and FusedSGDAgain is optimizers.FusedSGD
    assert apex.DeprecatedFeatureWarning.__module__.startswith("ampcompat")
    assert not hasattr(apex.optimizers, "no_such_name") and not hasattr(apex.amp, "no_such_name")
    with pytest.raises(AttributeError, match="does not load: no GPU"):
        apex.fused_dense.no_such_name
    with pytest.raises(ImportError, match="does not provide apex.optimizers.FusedLion"):
        from apex.optimizers import FusedLion  # noqa: F401


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_their_optimizer_trains_with_our_amp(installed, level):
    installed(FILES)
    from apex import amp
    from apex.optimizers import FusedAdam

    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1)
    model, optimizer = amp.initialize(model, FusedAdam(model.parameters(), lr=0.1), opt_level=level, verbosity=0)
    losses = []
    for _ in range(10):
        optimizer.zero_grad()
        loss = (model(torch.ones(4, 3)).float() - 1.0).pow(2).mean()
        loops.step(loss, optimizer)
        losses.append(loss.item())
    assert losses[-1] < losses[0]


def test_loaded_first_they_are_set_aside_and_come_back(installed, monkeypatch, tmp_path):
    for name in [name for name in sys.modules if name.partition(".")[0] in ("apex", "amp_C")]:
        monkeypatch.delitem(sys.modules, name)  # of an earlier test in this process
    monkeypatch.syspath_prepend(write(tmp_path, FILES))
    nvidia = importlib.import_module("apex.transformer")
    try:
        installed({})
        from apex import amp

        assert amp.initialize.__module__ == "ampcompat.amp"
        install.uninstall()
        assert sys.modules["apex.transformer"] is nvidia
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] in ("apex", "amp_C")]:
            del sys.modules[name]


def test_a_web_toolkit_named_apex_is_not_nvidias(installed):
    installed(WEB_TOOLKIT)
    import apex

    assert nvidia_apex.find_nvidia_apex() is None and apex.optimizers.FusedAdam is optimizers.FusedAdam
    with pytest.raises(ImportError, match="does not provide apex.models"):
        importlib.import_module("apex.models")


@pytest.mark.parametrize(
    "files, expected",
    [
        (WEB_TOOLKIT, "not NVIDIA's (PyPI's apex is a web toolkit)"),
        (FILES, "no longer has an amp"),
        (dict(FILES, **{"apex/amp/__init__.py": ""}), "its own amp"),
    ],
    ids=["web toolkit", "today's", "with amp"],
)
def test_it_is_described_in_one_sentence(tmp_path, files, expected):
    folder = write(tmp_path, files)
    sentence = nvidia_apex.describe(nvidia_apex.other_apex([folder]))
    assert expected in sentence and folder in sentence and sentence.endswith(".") and ";" in sentence


@pytest.mark.parametrize("files", [WEB_TOOLKIT, FILES], ids=["web toolkit", "today's"])
def test_run_gives_the_script_ampcompats_apex_and_mentions_an_unrelated_one(tmp_path, files):
    folder = write(tmp_path / "site-packages", files)
    script = tmp_path / "script.py"
    script.write_text(
        "import torch\ntorch.cuda.is_available = lambda: True\nimport apex\n"
        "print(apex.amp.initialize.__module__, getattr(apex.optimizers.FusedAdam, 'origin', 'ampcompat'))\n"
    )
    done = python(*(RUN + (script,)), env=environment(PYTHONPATH=os.pathsep.join([ROOT, folder])))
    assert done.stdout.split() == ["ampcompat.amp", "ampcompat" if files is WEB_TOOLKIT else "nvidia"], done.stderr
    lines = done.stderr.splitlines()
    assert len(lines) == (files is WEB_TOOLKIT) and all("web toolkit" in line for line in lines)
