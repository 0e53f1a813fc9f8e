"""torch.jit.script reads the source of what a function calls, and must find torch's own functions there.

Owns: the patch of ``torch.jit.script``.
Must not touch: tracing, which runs wrappers like anything else.
The surprise: while something is being scripted the wrappers are out of place for the whole process. It takes
milliseconds, as a rule when modules are imported or built, and there is no other door: the compiler looks functions up
by identity.
"""

import functools

import torch

from ..parts.patching import PatchStack


def script_originals(originals, patches):
    """Let ``torch.jit.script`` see the functions that were there before.

    Args:
        originals: [(owner, name, entry)]: what the wrappers took the place of.
        patches: the ``PatchStack`` that undoes it.
    """
    script = torch.jit.script

    @functools.wraps(script)
    def script_with_originals(*args, **kwargs):
        with PatchStack() as restored:
            for owner, name, entry in originals:
                restored.set(owner, name, entry)
            return script(*args, **kwargs)

    patches.set(torch.jit, "script", script_with_originals)
