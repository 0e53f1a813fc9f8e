"""Say what to use instead of the parts of Apex that are not carried.

Owns: the table of advice, and the error that gives it.
Must not touch: names outside ``apex`` and Apex's two extension modules.
The surprise: a finder at the very end of ``sys.meta_path`` raises the error, because only it hears of names that no
file answers to; to a probe by ``importlib.util.find_spec`` it says, truthfully, that there is no such module. Before
either, both ends of that list ask ``ampcompat.apex.beside`` about another Apex that is installed.
"""

import sys

_ADVICE = {
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
    "apex.contrib": "the function of torch itself, where it has one",
    "apex.transformer": "Megatron-LM's megatron.core, where Apex's transformer parts now live",
}


class NotCarriedImportError(ModuleNotFoundError):
    """A part of Apex that ampcompat does not carry; the message says what to use instead."""


def explain(name):
    """Return one sentence about a name that is not carried: what to use instead, or what there is beside it."""
    entry = name
    while entry not in _ADVICE and "." in entry:
        entry = entry.rpartition(".")[0]
    advice = _ADVICE.get(entry)
    if advice:
        return "ampcompat does not carry {}; use {}.".format(name, advice)
    home = name.rpartition(".")[0]
    known = _names_in(home)
    there = "; {} has {}".format(home, ", ".join(known)) if known else ""
    return "ampcompat does not carry {}{}.".format(name, there)


def _names_in(home):
    """Return the public names of a loaded module, without what it imported for itself."""
    module = sys.modules.get(home)
    names = [] if module is None else [name for name in dir(module) if not name.startswith("_")]
    values = {name: vars(module).get(name) for name in names}
    foreign = [name for name, value in values.items() if getattr(value, "__spec__", None) and not _is_in(home, value)]
    return sorted(set(names).difference(foreign))


def _is_in(home, module):
    return module.__name__.startswith(home + ".")


def their_attribute(name):
    """Return what another Apex that is installed has under a name, or raise AttributeError."""
    if name.startswith("__"):
        raise AttributeError(name)
    from ampcompat.apex import beside

    return beside.attribute(name)


def watch():
    """Give the advice from now on, in this process; take the compiled parts of another Apex where there is one."""
    sys.meta_path.insert(0, _Chooser())
    sys.meta_path.append(_Adviser())


class _Chooser:
    """The first finder to be asked: a part of an Apex beside ours may be the better one."""

    def find_spec(self, fullname, path=None, target=None):
        """Return the spec of their part, or None: go on as usual."""
        if not fullname.startswith("apex."):
            return None
        from ampcompat.apex import beside

        return beside.preferred(fullname)


class _Adviser:
    """The last finder to be asked: what comes here, nobody found."""

    def find_spec(self, fullname, path=None, target=None):
        """Raise the advice for a name of Apex; return None for every other one, and to a probe."""
        if not fullname.startswith("apex."):
            return None
        from ampcompat.apex import beside

        spec = beside.missing(fullname)
        if spec is not None:
            return spec
        requested, asker = _request(fullname, sys._getframe(1))
        if asker == "importlib.util":  # a probe by importlib.util.find_spec
            return None
        # Without `name=`: with it, `from apex import parallel` would swallow the error and lose the advice.
        raise NotCarriedImportError(explain(requested))


def _request(fullname, frame):
    """Return (the whole name that is being imported, the module that asks), from the import system's own frames.

    ``import apex.contrib.xentropy`` asks a finder for ``apex.contrib`` first, but the advice is for the whole.
    """
    requested = fullname
    while frame is not None and frame.f_globals.get("__name__") == "importlib._bootstrap":
        name = frame.f_locals.get("name")
        if isinstance(name, str) and name.startswith(fullname + "."):
            requested = name
        frame = frame.f_back
    return requested, frame and frame.f_globals.get("__name__")
