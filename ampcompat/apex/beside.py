"""Another package ``apex`` beside ours: whose it is, and the use of its compiled parts.

Owns: where it is; which of its parts are taken, and where the rest comes from.
Must not touch: its files; ``sys.path``.
The surprise: today's Apex still has optimizers, norms and more, but no amp, parallel and fp16_utils. Where a part's
CUDA extension loads and there is a GPU, the part is theirs, by the same names; whatever they lack is ours, and whatever
we lack is theirs. ``AMPCOMPAT_OTHER_APEX=off`` leaves them alone.
"""

import functools
import importlib
import importlib.util
import os
import sys
from importlib.machinery import PathFinder

#: The folder that holds the package ``apex`` and its metadata.
SITE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "site")

VARIABLE = "AMPCOMPAT_OTHER_APEX"

#: What a package named ``apex`` has if it is NVIDIA's, with or without ``amp``.
_ROOMS = ("optimizers", "normalization", "parallel", "multi_tensor_apply", "fp16_utils")

#: part -> (the extension without which it is useless, our modules that have the same names)
_PARTS = {
    "apex.optimizers": ("amp_C", ("optimizers", "contrib.fp16_optimizer")),
    "apex.multi_tensor_apply": ("amp_C", ("multi_tensor.apply",)),
    "apex.normalization": ("fused_layer_norm_cuda", ("normalization",)),
    "apex.mlp": ("mlp_cuda", ("mlp",)),
    "apex.fused_dense": ("fused_dense_cuda", ("mlp",)),
    "apex.contrib.clip_grad": ("amp_C", ("contrib.clip_grad",)),
    "apex.contrib.xentropy": ("xentropy_cuda", ("contrib.xentropy",)),
    "apex.contrib.layer_norm": ("fast_layer_norm", ("contrib.layer_norm",)),
}

#: Parts of which everything is ours, whatever an older Apex has.
_OURS = ("amp", "fp16_utils", "parallel")


def other_apex(folders):
    """Return the package folder of an ``apex`` in ``folders`` that is not ours, or None."""
    # By a file that only ours has, since another copy of ampcompat may be on the path too.
    folders = [folder for folder in folders if not os.path.exists(os.path.join(folder, "apex", "_absent.py"))]
    spec = PathFinder.find_spec("apex", folders)
    if spec is None or spec.origin is None or spec.origin == "namespace":
        return None
    return os.path.dirname(spec.origin) if spec.submodule_search_locations else spec.origin


def is_nvidias(package):
    """Return whether a package named ``apex`` is NVIDIA's, of whatever year; PyPI's is a web toolkit."""
    return any(has_room(package, room) for room in _ROOMS)


def has_room(package, room):
    """Return whether a package's folder has a module of this name."""
    return any(os.path.exists(os.path.join(package, room + ending)) for ending in ("", ".py"))


def about(package):
    """Return one sentence: whose package that is, and what becomes of it."""
    if not is_nvidias(package):
        return (
            "The package named apex at {} is not NVIDIA's (PyPI's apex is a web toolkit); ours comes before "
            "it.".format(package)
        )
    if has_room(package, "amp"):
        return "The Apex at {} has an amp of its own; ampcompat's comes before it.".format(package)
    return (
        "The Apex at {} has no amp any more; ampcompat's comes before it, and its compiled parts are used where there "
        "is a GPU.".format(package)
    )


def neighbour():
    """Return the folder of NVIDIA's package on ``sys.path``, or None."""
    if os.environ.get(VARIABLE) == "off":
        return None
    found = other_apex(sys.path)
    return found if found and is_nvidias(found) else None


def extension(name):
    """Return their extension module of this name, loaded, or None: none there, none that loads, or no GPU."""
    folders = [folder for folder in sys.path if os.path.abspath(folder or os.curdir) != SITE]
    spec = PathFinder.find_spec(name, folders) if neighbour() else None
    if spec is None or spec.loader is None or not _has_gpu():
        return None
    return _loaded(name, spec.origin)


@functools.lru_cache(maxsize=None)
def _loaded(name, location):
    """Return an extension module from a file, or None: built for another torch, or a library of CUDA's is missing."""
    spec = importlib.util.spec_from_file_location(name, location)
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (ImportError, OSError):
        return None
    return module


def preferred(name):
    """Return the spec of their module of this name where it is to be used instead of ours, or None."""
    if name not in _PARTS:
        return None
    theirs = neighbour()
    needs, ours = _PARTS[name]
    spec = None if theirs is None else _spec_in(theirs, name)
    if spec is None or extension(needs) is None:
        return None
    spec.loader = _Filled(spec.loader, ours)
    return spec


def missing(name):
    """Return the spec of a module that nobody found: ours within a part of theirs, theirs within a part of ours."""
    theirs = neighbour()
    if theirs is None:
        return None
    found = _spec_in(os.path.join(SITE, "apex"), name)
    if found is None and name.split(".")[1] not in _OURS:
        found = _spec_in(theirs, name)
    return found


def attribute(name):
    """Return what their ``apex/__init__.py`` has under a name.

    Raises:
        AttributeError: it has none, or does not load, or there is no such file.
    """
    theirs = neighbour()
    spec = None if theirs is None else PathFinder.find_spec("apex", [os.path.dirname(theirs)])
    if spec is None:
        raise AttributeError(name)
    scratch = importlib.util.module_from_spec(spec)  # what it imports of its own package is what ours gives it
    try:
        spec.loader.exec_module(scratch)
    except ImportError as error:
        raise AttributeError(name) from error
    return getattr(scratch, name)


def _spec_in(package, name):
    return PathFinder.find_spec(name, [os.path.join(package, *name.split(".")[1:-1])])


def _has_gpu():
    from ..tables import torch_facts  # not before it is asked for: importing apex must not load torch

    return "cuda" in torch_facts.available_devices()


class _Filled:
    """The loader of a part of theirs: adds what it lacks; loads ours where theirs does not load.

    Args:
        theirs: the loader of their module.
        ours: our modules, whose public names are added.
    """

    def __init__(self, theirs, ours):
        self._theirs, self._ours = theirs, ours

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._theirs, name)

    def create_module(self, spec):
        """Let theirs make the module."""
        return self._theirs.create_module(spec)

    def exec_module(self, module):
        """Load."""
        try:
            self._theirs.exec_module(module)
        except ImportError:
            self._load_ours(module)
            return
        for name in self._ours:
            own = importlib.import_module("." + name, __package__)
            for public in getattr(own, "__all__", None) or [each for each in vars(own) if not each.startswith("_")]:
                vars(module).setdefault(public, getattr(own, public))

    @staticmethod
    def _load_ours(module):
        for name in [name for name in sys.modules if name.startswith(module.__name__ + ".")]:
            del sys.modules[name]
        spec = _spec_in(os.path.join(SITE, "apex"), module.__name__)
        places = {"__file__": spec.origin, "__loader__": spec.loader, "__path__": spec.submodule_search_locations}
        vars(module).update(places, __spec__=spec)
        spec.loader.exec_module(module)
