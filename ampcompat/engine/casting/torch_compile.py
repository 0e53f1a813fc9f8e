"""Support for torch.compile: conditions that it can guard on, and the function names that it has collected.

torch._dynamo collects torch's functions by name once, at the first compilation. If it collected our wrappers under
those names, it would not recognise the original functions after the session has been closed.
"""

import functools
import sys

import torch

from ...support.torch_compat import features
from .autocast_flags import IS_BY_DEVICE

_compiler = getattr(torch, "compiler", None)

#: Whether what the compiler traces reads the attributes of a ``threading.local`` that the thread has set. Before torch
#: 2.12 it reads those of the class.
READS_THREADS = features.is_version_within(oldest="2.12")

#: Settings of the compiler without which it does not see casts, or that they are paused, in some releases of torch.
#: By version: newer torch warns that the first is without effect.
_SETTINGS = {}
if features.is_version_within(newest="2.4"):
    _SETTINGS["inline_inbuilt_nn_modules"] = True
if features.is_version_within(oldest="2.10", newest="2.10"):  # with Python 3.13, it overlooks that a list was changed
    _SETTINGS["use_recursive_dict_tags_for_guards"] = False

#: Whether the compiler replaces a ``Sequential`` by its layers, without its ``forward`` and so without the casts of its
#: inputs, unless an attribute of the module tells it not to; torch 2.4 has a setting for it.
UNROLLS_SEQUENTIAL = features.is_version_within(oldest="2.0", newest="2.3")

#: The attribute that marks our wrappers.
MARK = "_ampcompat_wrapper"


def original(function):
    """Return the function inside our wrappers, or the function itself if it is not wrapped."""
    while getattr(function, MARK, False):
        function = function.__wrapped__
    return function


def _never():
    return False


def _is_compiling():
    return _reports_compiling() or _tracing_context() is not None


_context = getattr(getattr(torch, "_guards", None), "TracingContext", None)
_tracing_context = getattr(_context, "try_get", None) or getattr(_context, "get", _never)  # in torch 2.1 ``get``

#: Whether the compiler runs: tracing, or trying code with fake tensors. In torch 2.1 and 2.2 it is in ``_utils``.
is_compiling = getattr(_compiler, "is_compiling", None) or getattr(torch._utils, "is_compiling", _never)
_reports_compiling = is_compiling
if _compiler is None:
    is_compiling = _never  # torch 2.0, whose ``is_compiling`` is always False, and before
elif not hasattr(_compiler, "_compile_session_context"):
    is_compiling = _is_compiling  # torch's own is False while code is tried, which may call wrappers (torch 2.8)

#: Whether torch.compile is tracing the calling code; it treats this function as a constant. A call costs a fifth of
#: ``is_compiling``, and wrappers make one every time (torch >= 2.2).
is_tracing = getattr(_compiler, "is_dynamo_compiling", is_compiling)


def compiled_graphs():
    """Return the number of graphs that have been compiled in this process."""
    counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", {})
    return counters.get("stats", {}).get("unique_graphs", 0)


def end_graph():
    """Make torch.compile, which is tracing the calling code, end its graph here.

    A graph keeps methods of tensors by name, and looks them up when it runs. So our wrappers run again then, and casts
    must be paused then, not only while the code is traced.
    """
    torch._dynamo.graph_break()


def is_autocast_enabled(devices):
    """Return whether autocast is on for any of the device types, in a form that the compiler guards on."""
    if not IS_BY_DEVICE:
        return torch.is_autocast_enabled() or torch.is_autocast_cpu_enabled()
    for device in devices:
        if torch.is_autocast_enabled(device):
            return True
    return False


def autocast_off(devices):
    """Return a context that the compiler supports and that turns casts off; it covers one device type, the last."""
    return torch.autocast(devices[-1], enabled=False)


def patch_compile(patches, codes=(), uncompiled=()):
    """Correct the function names that the compiler has collected, at every call of ``torch.compile``.

    Args:
        codes: the code of functions that are traced within compiled code, but not compiled where Python calls them.
        uncompiled: (class or module, name of a function) that compiled code does not call: where Python calls it,
            neither the function nor what it calls is compiled.
    """
    if not hasattr(torch, "compile"):
        return
    before = torch.compile

    @functools.wraps(before)
    def compile(*args, **kwargs):
        import torch._dynamo  # noqa: F401  # a slow import, which torch.compile makes anyway

        _use_originals()
        change_settings(patches)
        for code in codes:
            torch._dynamo.eval_frame.skip_code(code)
        for owner, name in uncompiled:
            if not hasattr(vars(owner)[name], "__wrapped__"):  # at the first call
                patches.set(owner, name, torch._dynamo.disable(vars(owner)[name]))
        return before(*args, **kwargs)

    patches.defer(_forget_wrappers)
    patches.set(torch, "compile", compile)
    change_settings(patches)


def change_settings(patches):
    """Change the compiler's settings so that it sees casts, if it is imported, until ``patches`` is undone.

    Torch 2.4 only records that a layer of torch was called, and a ``Sequential`` is to it what its layers are. So the
    casts of functions are compiled without a guard on whether casts are on, and those of a model's inputs are left out,
    unless it traces what torch's own layers call, as later releases do. Of older ones see ``UNROLLS_SEQUENTIAL``.
    """
    config = getattr(sys.modules.get("torch._dynamo"), "config", None)
    changed = {name: value for name, value in _SETTINGS.items() if getattr(config, name, value) is not value}
    if changed:
        context = config.patch(changed)
        context.__enter__()
        patches.defer(context.__exit__, None, None, None)


def _use_originals():
    """Replace the compiler's entries for our wrappers by entries for the functions that they wrap."""
    rules = sys.modules.get("torch._dynamo.trace_rules")
    learned = getattr(rules, "get_torch_obj_rule_map", dict)()
    for known in [known for known in learned if getattr(known, MARK, False)]:
        learned[original(known)] = learned.pop(known)


def _forget_wrappers():
    """Make the compiler collect its names again, now that they are torch's own functions."""
    forget = getattr(sys.modules.get("torch._dynamo.trace_rules"), "clear_lru_cache", None)
    if forget is not None:
        forget()
