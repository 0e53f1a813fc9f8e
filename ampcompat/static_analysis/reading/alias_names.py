"""Which names of Apex ampcompat has, read from the files of the alias package without importing them.

The alias (``ampcompat/apex/site``) is the only list. A name is supported if its file binds it: by an import, a
definition or an assignment.
"""

import ast
import functools
import importlib.util
import os
from typing import NamedTuple

from ...apex import nvidia_apex
from ..rules import IN_PART, REFUSED, SUPPORTED

#: Supported names that do less than Apex's.
PARTIAL = {
    "apex.amp.init": "it casts functions as O1 does; scale_loss and wrap_optimizer of its handle raise",
    "apex.amp.amp.init": "it casts functions as O1 does; scale_loss and wrap_optimizer of its handle raise",
    "apex.amp.opt.OptimWrapper": "it raises; use amp.initialize and amp.scale_loss",
    "apex.pyprof": "it does nothing; torch.profiler measures",
}

#: Compiled modules of Apex that scripts import by name, in addition to those in the alias.
EXTENSIONS = {
    "fused_layer_norm_cuda": "apex.normalization",
    "fused_dense_cuda": "apex.fused_dense",
    "mlp_cuda": "apex.mlp",
    "xentropy_cuda": "apex.contrib.xentropy",
    "fast_layer_norm": "apex.contrib.layer_norm",
    "syncbn": "apex.parallel",
    "bnp": "apex.contrib.groupbn",
    "fast_multihead_attn": "apex.contrib.multihead_attn",
    "fmhalib": "apex.contrib.fmha",
    "fused_adam_cuda": "apex.optimizers",
    "distributed_adam_cuda": "apex.contrib.optimizers",
    "distributed_lamb_cuda": "apex.contrib.optimizers",
    "fused_lamb_cuda": "apex.optimizers",
    "focal_loss_cuda": "apex.contrib.focal_loss",
    "fused_index_mul_2d": "apex.contrib.index_mul_2d",
    "fused_weight_gradient_mlp_cuda": "apex.transformer",
    "scaled_masked_softmax_cuda": "apex.transformer",
    "scaled_softmax_cuda": "apex.transformer",
    "scaled_upper_triang_masked_softmax_cuda": "apex.transformer",
    "transducer_joint_cuda": "apex.contrib.transducer",
    "transducer_loss_cuda": "apex.contrib.transducer",
}


class NameSupport(NamedTuple):
    """How a name is supported, with a remark."""

    becomes: str
    advice: str


class AliasNames:
    """The modules of the alias and the names in each of them.

    Attributes:
        modules: module -> the names that it binds, including submodules.
        open: modules with attributes that are created at run time (Apex's ``_amp_state`` and op lists).
    """

    def __init__(self):
        self.modules, self.open = {}, set()
        for name, path in _module_files(nvidia_apex.SITE):
            with open(path, encoding="utf-8") as file:
                tree = ast.parse(file.read())
            self.modules[name] = _bound_names(tree) | self.modules.get(name, set())
            if any(isinstance(node, ast.Attribute) and node.attr == "__class__" for node in ast.walk(tree)):
                self.open.add(name)
            parent, _, last = name.rpartition(".")
            if parent:
                self.modules.setdefault(parent, set()).add(last)
        self._deepest = max(name.count(".") + 1 for name in self.modules)
        self.roots = {name for name in self.modules if "." not in name}

    def is_apex(self, dotted):
        """Return whether a full name belongs to Apex or one of its compiled modules."""
        root = dotted.partition(".")[0]
        return root in self.roots or root in EXTENSIONS

    def verdict(self, dotted):
        """Return how a full name of Apex is supported, as a ``NameSupport``."""
        if dotted.partition(".")[0] in EXTENSIONS:
            home = EXTENSIONS[dotted.partition(".")[0]]
            there = f"use {home}" if home in self.modules else self.advice(home)
            return NameSupport(REFUSED, "a compiled module of Apex; " + there)
        module = ".".join(dotted.split(".")[: self._deepest])
        while module not in self.modules:
            module = module.rpartition(".")[0]
        rest = dotted[len(module) + 1 :].split(".")[0]
        if rest and rest not in self.modules[module] and module not in self.open and not _is_special(rest):
            return NameSupport(REFUSED, self.advice(module + "." + rest))
        for known, advice in PARTIAL.items():
            if (dotted + ".").startswith(known + "."):
                return NameSupport(IN_PART, advice)
        return NameSupport(SUPPORTED, "")

    def advice(self, dotted):
        """Return what to use instead of a name that is not supported."""
        entry = dotted
        while entry not in _replacements() and "." in entry:
            entry = entry.rpartition(".")[0]
        if entry in _replacements():
            return "use " + _replacements()[entry]
        home = dotted.rpartition(".")[0]
        names = sorted(name for name in self.modules.get(home, ()) if not name.startswith("_"))
        return "{} has {}".format(home, ", ".join(names))


@functools.lru_cache(maxsize=None)
def alias_names():
    """Return the names of the alias; they are read once."""
    return AliasNames()


@functools.lru_cache(maxsize=None)
def _replacements():
    """Return the alias's own table of replacements, from a copy of its module without its import hooks."""
    path = os.path.join(nvidia_apex.SITE, "apex", "_absent.py")
    spec = importlib.util.spec_from_file_location("ampcompat_absent_table", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.ADVICE


def _is_special(name):
    return name.startswith("__") and name.endswith("__")


def _module_files(site):
    """Yield (module, file) of the alias, packages before their modules."""
    for folder, folders, files in os.walk(site):
        folders[:] = sorted(each for each in folders if each.isidentifier() and each != "__pycache__")
        package = os.path.relpath(folder, site).replace(os.sep, ".").lstrip(".")
        for file in sorted(files, key=lambda each: (each != "__init__.py", each)):
            stem, ending = os.path.splitext(file)
            if ending == ".py":
                parts = [package] * bool(package) + [stem] * (stem != "__init__")
                yield ".".join(parts), os.path.join(folder, file)


def _bound_names(tree):
    """Return the names that the body of a module binds."""
    names = set()
    for node in tree.body:
        if isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names |= {each.id for target in node.targets for each in ast.walk(target) if isinstance(each, ast.Name)}
            if any(isinstance(target, ast.Name) and target.id == "_PACKAGE_NAMES" for target in node.targets):
                names |= set(ast.literal_eval(node.value))
    return names
