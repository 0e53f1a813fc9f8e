"""``check`` knows the names of the alias from its files: the same that importing it gives."""

import importlib
import os
import subprocess
import sys

import pytest

from ampcompat.apex import install, nvidia_apex
from ampcompat.static_analysis.reading.alias_names import EXTENSIONS, PARTIAL, alias_names
from ampcompat.static_analysis.rules import IN_PART, REFUSED, SUPPORTED

NAMES = alias_names()


@pytest.fixture(autouse=True)
def alias():
    install.install()
    yield
    install.uninstall()


def test_every_public_name_of_the_imported_alias_is_known_as_carried():
    unknown = []
    for module in NAMES.modules:
        loaded = importlib.import_module(module)
        for name in dir(loaded):
            value = getattr(loaded, name)
            is_foreign_module = isinstance(value, type(sys)) and not NAMES.is_apex(value.__name__)
            if not name.startswith("_") and not is_foreign_module:
                verdict = NAMES.verdict(module + "." + name).becomes
                unknown += [module + "." + name] if verdict == REFUSED and _is_of_the_alias(module, value) else []
    assert unknown == []


def _is_of_the_alias(module, value):
    """Return whether a value is more than a helper that the module imported from Python or torch."""
    home = getattr(value, "__module__", "ampcompat") or "ampcompat"
    return home.partition(".")[0] in ("ampcompat", "apex")


def test_every_known_name_is_there_when_the_alias_is_imported():
    loaded_modules = {module: importlib.import_module(module) for module in NAMES.modules}  # submodules too
    for module, names in NAMES.modules.items():
        loaded = loaded_modules[module]
        assert [name for name in names if not hasattr(loaded, name)] == []


def test_every_file_of_the_alias_is_a_known_module():
    files = {os.path.join(folder, name) for folder, _, names in os.walk(nvidia_apex.SITE) for name in names}
    assert len(NAMES.modules) == len([path for path in files if path.endswith(".py")])


@pytest.mark.parametrize(
    "name, becomes",
    [
        ("apex", SUPPORTED),
        ("apex.amp.initialize", SUPPORTED),
        ("apex.parallel.DistributedDataParallel.forward", SUPPORTED),
        ("apex.normalization.fused_layer_norm.FusedLayerNormAffineFunction", SUPPORTED),
        ("apex.amp._amp_state._amp_state", SUPPORTED),
        ("apex.__version__", SUPPORTED),
        ("amp_C.multi_tensor_scale", SUPPORTED),
        ("apex.amp.init", IN_PART),
        ("apex.pyprof.nvtx.init", IN_PART),
        ("apex.transformer.parallel_state", REFUSED),
        ("apex.contrib.sparsity.ASP", REFUSED),
        ("apex.optimizers.FusedLars", REFUSED),
        ("fmhalib.fwd", REFUSED),
    ],
)
def test_what_a_name_becomes(name, becomes):
    assert NAMES.verdict(name).becomes == becomes


def test_a_refused_name_comes_with_the_advice_of_its_import_error():
    with pytest.raises(ImportError) as error:
        importlib.import_module("apex.contrib.sparsity")
    assert NAMES.verdict("apex.contrib.sparsity.ASP").advice in str(error.value)
    assert "FusedAdam" in NAMES.verdict("apex.optimizers.FusedLars").advice


def test_partly_carried_names_exist_and_extensions_have_a_home():
    assert all(NAMES.verdict(name).becomes == IN_PART for name in PARTIAL)
    assert all(home in NAMES.modules or NAMES.advice(home).startswith("use ") for home in EXTENSIONS.values())


def test_check_does_not_import_torch(tmp_path):
    (tmp_path / "train.py").write_text("from apex import amp\n")
    code = "import sys; from ampcompat.cli import main; main(['check', sys.argv[1]]); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, check=True)
    assert done.stdout.decode().split()[-1] == "False"
