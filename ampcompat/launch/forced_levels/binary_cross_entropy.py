"""``binary_cross_entropy`` of half probabilities under a forced level: computed in float32 at O1 and O4.

Other scripts are refused it, as with Apex, but a forced level cannot change the line of the script. ``sigmoid`` is
computed in float32 from then on too: a float32 loss of half probabilities would still have gradients outside of the
range of half. All of this ends with the forced level.
"""

import torch

from ...observers.steps import watch_scripting
from ...support.containers import map_arguments
from ...support.patching import PatchStack
from ...support.script_frames import script_line
from ...support.torch_compat.torch_names import dtype_name

_HALF = (torch.float16, torch.bfloat16)
_SIGMOIDS = ((torch, "sigmoid"), (torch.Tensor, "sigmoid"), (getattr(torch, "special", torch), "expit"))


class AcceptedProbabilities:
    """Makes ``binary_cross_entropy`` accept half probabilities in a session of a forced level.

    Args:
        session: the ``Session``, whose own patches have been applied.
    """

    def __init__(self, session):
        self._session = session
        self._is_needed = session.policy.patch_torch_functions and session.policy.dtypes.low in _HALF
        self._has_float32_sigmoid = False
        self._patches = PatchStack()

    def begin(self):
        """Patch torch until ``end``, which must come before the session is closed."""
        if not self._is_needed:
            return
        self._patches.wrap(torch.nn.functional, "binary_cross_entropy", self._in_float32)
        if self._has_float32_sigmoid:
            self._widen_sigmoid()
        # The compiler looks up functions in ``torch``; the session restores those that it has replaced.
        watch_scripting(self._patches, self.end, self.begin)

    def end(self):
        """Restore torch."""
        self._patches.undo()

    def _in_float32(self, call, *args, **kwargs):
        """Return the ``binary_cross_entropy`` of half probabilities."""
        found = [each for each in args + tuple(kwargs.values()) if _is_half(each)]
        if found and self._session.cast_backend.active():
            self._tell(found[0].dtype)
            args, kwargs = map_arguments(lambda each: each.float() if _is_half(each) else each, args, kwargs)
        return call(*args, **kwargs)

    def _tell(self, dtype):
        """At the first call, print a notice, and compute probabilities in float32 from now on."""
        if self._has_float32_sigmoid:
            return
        self._has_float32_sigmoid = True
        name, (file, line) = dtype_name(dtype), script_line()
        self._session.notices.say(
            f"ampcompat: {file}:{line}: binary_cross_entropy of {name} probabilities is computed in float32, and from "
            "now on sigmoid too, as the gradient of half probabilities exceeds the range of half. "
            "binary_cross_entropy_with_logits needs no such exception."
        )
        self._widen_sigmoid()

    def _widen_sigmoid(self):
        for owner, name in _SIGMOIDS:
            if hasattr(owner, name):
                self._patches.wrap(owner, name, self._wide)

    def _wide(self, call, input, *args, **kwargs):
        if _is_half(input) and "out" not in kwargs and self._session.cast_backend.active():
            input = input.float()
        return call(input, *args, **kwargs)


def _is_half(value):
    return isinstance(value, torch.Tensor) and value.dtype in _HALF
