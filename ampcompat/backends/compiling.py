"""What a compiler that traces us must see.

Owns: the questions and contexts that torch.compile can follow, and the names that it must not mistake for ours.
Must not touch: the compiler's settings.
The surprise: torch._dynamo learns the functions of torch by name, once, at the first compilation. Were it to learn our
wrappers by those names, it would not know the functions themselves after we have put them back.
"""

import functools
import sys

import torch

from .autocast_flags import IS_BY_DEVICE

_compiler = getattr(torch, "compiler", None)

#: The attribute by which a wrapper of ours is known.
MARK = "_ampcompat_wrapper"


def _never():
    return False


#: Whether torch.compile is at work: it traces, or it tries with fake tensors what it cannot trace.
is_compiling = getattr(_compiler, "is_compiling", _never)

#: Whether it traces the very code that asks; it takes this function for a constant. A fifth of the other's price, for
#: wrappers ask at every call (torch >= 2.2).
is_tracing = getattr(_compiler, "is_dynamo_compiling", is_compiling)


def is_autocast_enabled(devices):
    """Return whether autocast is on for any of the device types, in a form that the compiler guards on."""
    if not IS_BY_DEVICE:
        return torch.is_autocast_enabled() or torch.is_autocast_cpu_enabled()
    for device in devices:
        if torch.is_autocast_enabled(device):
            return True
    return False


def autocast_off(devices):
    """Return the context that the compiler knows for casts off; it follows one device, the last."""
    return torch.autocast(devices[-1], enabled=False)


def teach_names(patches):
    """Correct what the compiler learned by name, each time that something is to be compiled."""
    if not hasattr(torch, "compile"):
        return
    original = torch.compile

    @functools.wraps(original)
    def compile(*args, **kwargs):
        import torch._dynamo  # torch.compile imports it anyway; nobody else should pay for it

        _correct_names()
        return original(*args, **kwargs)

    patches.set(torch, "compile", compile)
    patches.defer(_forget_names)


def _correct_names():
    """Let the compiler's entries for our wrappers be entries for the functions that they wrap."""
    rules = sys.modules.get("torch._dynamo.trace_rules")
    learned = getattr(rules, "get_torch_obj_rule_map", dict)()
    for known in [known for known in learned if getattr(known, MARK, False)]:
        original = known
        while getattr(original, MARK, False):
            original = original.__wrapped__
        learned[original] = learned.pop(known)


def _forget_names():
    """Let the compiler learn its names anew: by now they mean torch's own functions again."""
    forget = getattr(sys.modules.get("torch._dynamo.trace_rules"), "clear_lru_cache", None)
    if forget is not None:
        forget()
