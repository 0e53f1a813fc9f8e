"""The cast backends of O1 and O4, and ``choose``, which picks one and gives the reason."""

from typing import Mapping, NamedTuple

import torch

from ...errors import AmpValueError
from .cast_backend import CastBackend
from .op_table_backends import NativeBackend, PatchedBackend

__all__ = ["BACKENDS", "CastBackend", "Choice", "NativeBackend", "PatchedBackend", "choose"]

#: The backends that cast, by name.
BACKENDS = {backend.name: backend for backend in (NativeBackend, PatchedBackend)}

AUTO = "auto"


class Choice(NamedTuple):
    """The name of the backend that was chosen, the reason, and the reason against each of the others."""

    name: str
    reason: str
    rejected: Mapping[str, str]


def choose(facts, wanted=AUTO, dtypes=None):
    """Choose the backend of a session that casts by function.

    Raises:
        AmpValueError: no such backend, or the wanted one cannot work here; the message gives the reason.
    """
    if wanted != AUTO and wanted not in BACKENDS:
        raise AmpValueError(f"Unknown backend {wanted!r}: expected auto, native or patched.")
    objection = _objection_to_native(facts, dtypes)
    if wanted == "native" and objection:
        raise AmpValueError(f"The native backend cannot be used here: {objection}. Use auto or patched.")
    if wanted != "patched" and not objection:
        reason = "torch {} supports autocast to {} on {}".format(facts.version, dtypes.low, " and ".join(facts.devices))
        rejected = {"patched": "it casts only functions called from Python; native also casts those called from C++"}
        return Choice("native", reason if wanted == AUTO else "it was requested", rejected)
    reason = "it was requested" if wanted == "patched" else "it works with any torch, and native does not work here"
    return Choice("patched", reason, {"native": objection or "patched was requested"})


def _objection_to_native(facts, dtypes):
    """Return the reason why torch's autocast cannot be used for these dtypes on these devices, or None."""
    if dtypes.high is not torch.float32:
        return f"autocast computes in float32 outside of its half functions, not in {dtypes.high}"
    if not facts.autocast_devices:
        return f"torch {facts.version} has no torch.autocast"
    for device in facts.devices:
        if dtypes.low not in facts.autocast_devices.get(device, ()):
            return f"autocast of torch {facts.version} does not support {dtypes.low} on {device}"
    return None
