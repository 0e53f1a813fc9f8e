"""The patch of ``torch.jit.script``, which must compile torch's own functions and not the wrappers."""

import functools

import torch

from ...support.patching import PatchStack


def script_originals(originals, patches):
    """Make ``torch.jit.script`` see the original functions.

    The compiler looks functions up by identity, so the originals are put back while it runs. This holds for the whole
    process, but takes only milliseconds, as a rule when modules are imported or built.

    Args:
        originals: [(owner, name, entry)]: what the wrappers replaced.
        patches: the ``PatchStack`` that undoes it.
    """
    script = torch.jit.script

    @functools.wraps(script)
    def script_with_originals(obj, optimize=None, _frames_up=0, *args, **kwargs):
        with PatchStack() as restored:
            for owner, name, entry in originals:
                restored.set(owner, name, entry)
            # The globals of a scripted class are those of the caller, one frame further up from here.
            return script(obj, optimize, _frames_up + 1, *args, **kwargs)

    patches.set(torch.jit, "script", script_with_originals)
