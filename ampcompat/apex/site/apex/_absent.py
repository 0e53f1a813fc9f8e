"""Errors for parts of Apex that ampcompat does not provide: a table of replacements, and import hooks that use it.

The error is raised by a finder at the end of ``sys.meta_path``, since only the last one is called for names that no
file provides. For ``importlib.util.find_spec`` it returns None instead. A finder at each end of ``sys.meta_path`` first
calls ``ampcompat.apex.nvidia_apex`` for another installed Apex.
"""

import sys

ADVICE = {
    "apex.RNN": "torch.nn.LSTM, GRU and RNN",
    "apex.reparameterization": "torch.nn.utils.parametrize",
    "apex.pyprof": "torch.profiler",
    "apex.contrib.bottleneck": "torchvision.models.resnet.Bottleneck with channels_last tensors",
    "apex.contrib.conv_bias_relu": "torch.nn.Conv2d and ReLU, which torch.compile fuses",
    "apex.contrib.cudnn_gbn": "torch.nn.SyncBatchNorm",
    "apex.contrib.fmha": "torch.nn.functional.scaled_dot_product_attention",
    "apex.contrib.focal_loss": "torchvision.ops.sigmoid_focal_loss",
    "apex.contrib.gpu_direct_storage": "torch.cuda.gds",
    "apex.contrib.group_norm": "torch.nn.GroupNorm",
    "apex.contrib.groupbn": "torch.nn.BatchNorm2d with channels_last tensors",
    "apex.contrib.index_mul_2d": "first[index] * second, which torch.compile fuses",
    "apex.contrib.multihead_attn": "torch.nn.MultiheadAttention or torch.nn.functional.scaled_dot_product_attention",
    "apex.contrib.nccl_allocator": "torch.cuda.MemPool",
    "apex.contrib.optimizers": "torch.optim, or torch.distributed.optim.ZeroRedundancyOptimizer if distributed",
    "apex.contrib.sparsity": "torch.ao.pruning",
    "apex.contrib.transducer": "torchaudio.functional.rnnt_loss",
    "apex.contrib": "the function of torch itself, if there is one",
    "apex.transformer": "Megatron-LM's megatron.core, where Apex's transformer parts now live",
}


class NotProvidedError(ModuleNotFoundError):
    """A part of Apex that ampcompat does not provide; the message suggests a replacement."""


def explain(name):
    """Return one sentence about a name that is not provided: a replacement, or the names that its module has."""
    entry = name
    while entry not in ADVICE and "." in entry:
        entry = entry.rpartition(".")[0]
    advice = ADVICE.get(entry)
    if advice:
        return f"ampcompat does not provide {name}; use {advice}."
    parent = name.rpartition(".")[0]
    known = _names_in(parent)
    there = "; {} has {}".format(parent, ", ".join(known)) if known else ""
    return f"ampcompat does not provide {name}{there}."


def _names_in(parent):
    """Return the public names of a loaded module, without modules that it imported."""
    module = sys.modules.get(parent)
    names = [] if module is None else [name for name in dir(module) if not name.startswith("_")]
    values = {name: vars(module).get(name) for name in names}
    imported = [
        name for name, value in values.items() if getattr(value, "__spec__", None) and not _is_in(parent, value)
    ]
    return sorted(set(names).difference(imported))


def _is_in(parent, module):
    return module.__name__.startswith(parent + ".")


def nvidia_attribute(name):
    """Return an attribute of another installed Apex, or raise AttributeError."""
    if name.startswith("__"):
        raise AttributeError(name)
    from ampcompat.apex import nvidia_apex

    return nvidia_apex.nvidia_attribute(name)


def install_finders():
    """Install the import hooks in this process: the errors, and the compiled parts of another installed Apex."""
    sys.meta_path.insert(0, _NvidiaFinder())
    sys.meta_path.append(_AbsentFinder())


class _NvidiaFinder:
    """The first finder: modules of another installed Apex may be preferred."""

    def find_spec(self, fullname, path=None, target=None):
        """Return the spec of the preferred module, or None for the usual import."""
        if not fullname.startswith("apex."):
            return None
        from ampcompat.apex import nvidia_apex

        return nvidia_apex.preferred_spec(fullname, path)


class _AbsentFinder:
    """The last finder: it is called only for names that no other finder found."""

    def find_spec(self, fullname, path=None, target=None):
        """Raise the error for a name of Apex; return None for other names and for ``importlib.util.find_spec``."""
        if not fullname.startswith("apex."):
            return None
        from ampcompat.apex import nvidia_apex

        spec = nvidia_apex.fallback_spec(fullname)
        if spec is not None:
            return spec
        requested, importer = _request(fullname, sys._getframe(1))
        if importer == "importlib.util":  # called by importlib.util.find_spec
            return None
        # Without `name=`: with it, `from apex import parallel` would suppress the error and its message.
        raise NotProvidedError(explain(requested))


def _request(fullname, frame):
    """Return (the full name that is imported, the name of the importing module), from the frames of the import system.

    ``import apex.contrib.xentropy`` first calls a finder with ``apex.contrib``, but the message is about the full name.
    """
    requested = fullname
    while frame is not None and frame.f_globals.get("__name__") == "importlib._bootstrap":
        name = frame.f_locals.get("name")
        if isinstance(name, str) and name.startswith(fullname + "."):
            requested = name
        frame = frame.f_back
    return requested, frame and frame.f_globals.get("__name__")
