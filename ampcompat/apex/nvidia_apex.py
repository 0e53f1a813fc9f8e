"""Find another installed package ``apex``, and use its compiled parts.

Current NVIDIA Apex still has optimizers, norms and more, but no amp, parallel or fp16_utils. If the CUDA extension of a
part can be loaded and there is a GPU, NVIDIA's part is used under the same names. Names that it does not have come from
this package, and names that this package does not have come from NVIDIA's. Its files and ``sys.path`` are not changed.
``AMPCOMPAT_OTHER_APEX=off`` disables this.
"""

import functools
import importlib
import importlib.util
import os
import sys
from importlib.machinery import PathFinder

from ..support.child_environment import SITE

VARIABLE = "AMPCOMPAT_OTHER_APEX"

#: Submodules by which NVIDIA's ``apex`` is recognized, with or without ``amp``.
_SUBMODULES = ("optimizers", "normalization", "parallel", "multi_tensor_apply", "fp16_utils")

#: submodule -> (the CUDA extension that it needs, modules of this package that have the same names)
_PARTS = {
    "apex.optimizers": ("amp_C", ("optimizers", "contrib.optimizers")),
    "apex.multi_tensor_apply": ("amp_C", ("multi_tensor.functions",)),
    "apex.normalization": ("fused_layer_norm_cuda", ("normalization",)),
    "apex.mlp": ("mlp_cuda", ("mlp",)),
    "apex.fused_dense": ("fused_dense_cuda", ("mlp",)),
    "apex.contrib.clip_grad": ("amp_C", ("contrib",)),
    "apex.contrib.xentropy": ("xentropy_cuda", ("contrib",)),
    "apex.contrib.layer_norm": ("fast_layer_norm", ("contrib",)),
}

#: Submodules that always come from this package, whatever an older Apex has.
_ALWAYS_AMPCOMPAT = ("amp", "fp16_utils", "parallel")


def other_apex(folders):
    """Return the folder of an ``apex`` package in ``folders`` that is not this package's, or None."""
    folders = [folder for folder in folders if not is_ours(os.path.join(folder, "apex"))]
    spec = PathFinder.find_spec("apex", folders)
    if spec is None or spec.origin is None or spec.origin == "namespace":
        return None
    return os.path.dirname(spec.origin) if spec.submodule_search_locations else spec.origin


def is_ours(package):
    """Return whether an ``apex`` package folder belongs to ampcompat, this copy or another one on the path."""
    return os.path.exists(os.path.join(package, "_absent.py"))


def is_nvidia_apex(package):
    """Return whether a package named ``apex`` is NVIDIA's, of any version; the one on PyPI is a web toolkit."""
    return any(has_submodule(package, name) for name in _SUBMODULES)


def has_submodule(package, name):
    """Return whether the folder of a package has a module of this name."""
    return any(os.path.exists(os.path.join(package, name + ending)) for ending in ("", ".py"))


def describe(package):
    """Return one sentence that describes the package and whether it is used."""
    if not is_nvidia_apex(package):
        text = (
            "The package named apex at {} is not NVIDIA's (PyPI's apex is a web toolkit); ampcompat's comes before it."
        )
    elif has_submodule(package, "amp"):
        text = "The Apex at {} has its own amp; ampcompat's comes before it."
    else:
        text = (
            "The Apex at {} no longer has an amp; ampcompat's comes before it, and its compiled parts are used where "
            "there is a GPU."
        )
    return text.format(package)


def find_nvidia_apex():
    """Return the folder of NVIDIA's ``apex`` on ``sys.path``, or None."""
    if os.environ.get(VARIABLE) == "off":
        return None
    found = other_apex(sys.path)
    return found if found and is_nvidia_apex(found) else None


def extension(name):
    """Return NVIDIA's extension module of this name; None if it is absent, does not load, or there is no GPU."""
    folders = [folder for folder in sys.path if os.path.abspath(folder or os.curdir) != SITE]
    spec = PathFinder.find_spec(name, folders) if find_nvidia_apex() else None
    if spec is None or spec.loader is None or not _has_gpu():
        return None
    return _load_extension(name, spec.origin)


@functools.lru_cache(maxsize=None)
def _load_extension(name, location):
    """Return an extension module from a file; None if it was built for another torch or a CUDA library is missing."""
    spec = importlib.util.spec_from_file_location(name, location)
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (ImportError, OSError):
        return None
    return module


def preferred_spec(name, path):
    """Return the spec of the module of this name: NVIDIA's with this package's names added, or the other way round.

    None means the normal import: only one of the packages has the module, or its parent package is NVIDIA's. ``path``
    is the ``__path__`` of the parent package.
    """
    package = find_nvidia_apex() if name.split(".")[1] not in _ALWAYS_AMPCOMPAT else None
    nvidia_spec = None if package is None else _spec_in(package, name)
    if nvidia_spec is None or nvidia_spec.loader is None:
        return None
    needed_extension, own_modules = _PARTS.get(name, (None, ()))
    if needed_extension is not None and extension(needed_extension) is not None:
        _replace_exec_module(nvidia_spec.loader, functools.partial(_execute_nvidia, own_modules))
        return nvidia_spec
    own_spec = PathFinder.find_spec(name, path)
    if own_spec is None or not str(own_spec.origin).startswith(SITE + os.sep):
        return None
    _replace_exec_module(own_spec.loader, functools.partial(_execute_own, nvidia_spec))
    return own_spec


def fallback_spec(name):
    """Return the spec of a module that no other finder found: this package's, otherwise NVIDIA's, otherwise None."""
    package = find_nvidia_apex()
    if package is None:
        return None
    spec = _spec_in(os.path.join(SITE, "apex"), name)
    if spec is None and name.split(".")[1] not in _ALWAYS_AMPCOMPAT:
        spec = _spec_in(package, name)
    return spec


def nvidia_attribute(name):
    """Return an attribute of NVIDIA's ``apex/__init__.py``.

    Raises:
        AttributeError: there is no such attribute or file, or the file cannot be loaded.
    """
    package = find_nvidia_apex()
    spec = None if package is None else PathFinder.find_spec("apex", [os.path.dirname(package)])
    if spec is None:
        raise AttributeError(name)
    return getattr(_load_module(spec), name)


def _load_module(spec):
    """Load a module without adding it to ``sys.modules``; its own imports of ``apex`` resolve to this package."""
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (ImportError, OSError, RuntimeError) as error:
        raise AttributeError(f"{spec.origin} does not load: {error}") from error
    return module


def _spec_in(package, name):
    return PathFinder.find_spec(name, [os.path.join(package, *name.split(".")[1:-1])])


def _has_gpu():
    from ..support.torch_compat import features  # imported here, because importing apex must not load torch

    return "cuda" in features.available_devices()


def _replace_exec_module(loader, execute):
    """Make a loader call ``execute(its own exec_module, module)``; each spec has a loader of its own."""
    loader.exec_module = functools.partial(execute, loader.exec_module)


def _execute_own(nvidia_spec, execute, module):
    """Execute a module of this package. Missing names are looked up in NVIDIA's, which is loaded at first use."""
    nvidia_module = functools.lru_cache(maxsize=None)(lambda: _load_module(nvidia_spec))

    def look_up(name):
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(nvidia_module(), name)

    execute(module)
    vars(module).setdefault("__getattr__", look_up)


def _execute_nvidia(own_modules, execute, module):
    """Execute a module of NVIDIA's, and add missing names; execute this package's if NVIDIA's does not load."""
    try:
        execute(module)
    except ImportError:
        _execute_own_instead(module)
        return
    for name in own_modules:
        own = importlib.import_module("." + name, __package__)
        for public in [each for each in vars(own) if not each.startswith("_")]:
            vars(module).setdefault(public, getattr(own, public))


def _execute_own_instead(module):
    for name in [name for name in sys.modules if name.startswith(module.__name__ + ".")]:
        del sys.modules[name]
    spec = _spec_in(os.path.join(SITE, "apex"), module.__name__)
    paths = {"__file__": spec.origin, "__loader__": spec.loader, "__path__": spec.submodule_search_locations}
    vars(module).update(paths, __spec__=spec)
    spec.loader.exec_module(module)
