"""Hooks on the steps of all optimizers, which torch has from 2.0 on.

The compilers of torch 2.0 to 2.2 disable them: the first ``torch.compile`` of a process removes the wrapper that calls
them from every class of ``torch.optim``. Torch 2.3 was not tested; if there is nothing to restore, nothing is changed.
"""

import functools
import inspect
import sys
from collections import OrderedDict

import torch

from . import features

#: The attributes of an optimizer that hold its own hooks.
PRE_HOOKS, POST_HOOKS = "_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"

_GLOBAL_HOOKS = ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks")

_COMPILER_ENDS_HOOKS = features.is_version_within(newest="2.3")


def register(patches, before=None, after=None, once=True):
    """Call functions at every step of every optimizer until ``patches`` is undone.

    Args:
        patches: a ``PatchStack``.
        before: called with (optimizer, args, kwargs) before a step, as by torch's ``register_optimizer_step_pre_hook``,
            or None.
        after: the same after a step, or None.
        once: where the ``step`` of a class calls that of its base class, they are called once; else again, as by torch.
    """
    optim = sys.modules[torch.optim.Optimizer.__module__]
    if before is not None:
        patches.register(optim.register_optimizer_step_pre_hook, _once(before) if once else before)
    if after is not None:
        patches.register(optim.register_optimizer_step_post_hook, _once(after) if once else after)
    if _COMPILER_ENDS_HOOKS and hasattr(torch, "compile"):
        _restore(patches)
        compile = inspect.unwrap(torch.compile)  # sessions and `run --device` replace the attribute
        patches.redirect(compile, functools.partial(_compile_and_restore, patches))


def _once(hook):
    @functools.wraps(hook)
    def called(optimizer, args, kwargs):
        if running().count(optimizer) < 2:
            hook(optimizer, args, kwargs)

    # A step that the script compiles would have the hook in its graphs.
    return torch.compiler.disable(called) if features.is_version_within(oldest="2.1") else called


def running():
    """Return the optimizers whose steps the caller runs in, the innermost first; one again for its base class's step.

    They are read from the stack, since torch calls no hook after a step that raised an error.
    """
    found, frame, code = [], sys._getframe(1), _hooking_code()
    while frame is not None:
        if frame.f_code is code:
            found.append(frame.f_locals["args"][0])
        frame = frame.f_back
    return found


def exist():
    """Return whether torch calls hooks at the steps of all optimizers."""
    return hasattr(sys.modules[torch.optim.Optimizer.__module__], "register_optimizer_step_post_hook")


def register_first(optimizer, after, patches):
    """Call a function after each step of one optimizer, before its other hooks; undone by ``patches``.

    Optimizers of torch before 2.0, and objects that only look like optimizers, call none.
    """
    hooks = getattr(optimizer, POST_HOOKS, None)
    if hooks is not None:
        hook = patches.register(optimizer.register_step_post_hook, after)
        hooks.move_to_end(hook.id, last=False)


def hide(optimizer, patches):
    """Return the hooks before and after a step; until ``patches`` is undone torch calls none of them."""
    module = sys.modules[torch.optim.Optimizer.__module__]
    found = []
    for shared, own in zip(_GLOBAL_HOOKS, (PRE_HOOKS, POST_HOOKS)):
        hooks = []
        for owner, name in ((module, shared), (optimizer, own)):
            if getattr(owner, name, None):
                hooks += getattr(owner, name).values()
                patches.set(owner, name, OrderedDict())
        found.append(hooks)
    return found


def _compile_and_restore(patches, compile, *args, **kwargs):
    result = compile(*args, **kwargs)
    _restore(patches)
    return result


def _restore(patches):
    """Restore the hooks of classes that torch marks as calling hooks although they do not."""
    for kind in _subclasses(torch.optim.Optimizer):
        step = vars(kind).get("step")
        if getattr(step, "hooked", False) and not _calls_hooks(step):
            hooked = torch.optim.Optimizer.profile_hook_step(step)
            hooked.hooked = True
            patches.set(kind, "step", hooked)


def _calls_hooks(step):
    """Return whether a function is torch's wrapper of a ``step`` that calls hooks."""
    return getattr(step, "__code__", None) is _hooking_code()


@functools.lru_cache(maxsize=None)
def _hooking_code():
    return torch.optim.Optimizer.profile_hook_step(_subclasses).__code__


def _subclasses(kind):
    found = kind.__subclasses__()
    return found + [each for subclass in found for each in _subclasses(subclass)]
