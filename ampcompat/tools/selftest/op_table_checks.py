"""Conformance of the cast backends on a real device: every form of the op table, by dtype, value and gradient."""

import warnings

import torch

from ...engine import casting
from ...errors import AmpError
from ...opt_levels import BFLOAT16, HALF
from ...support.dtype_names import dtype_name
from ...support.patching import PatchStack
from ...support.torch_compat import features
from .conformance import AGREES, compare_all, functions
from .inputs import Device
from .results import NOT_RUN, CheckResult
from .training import REPORT, first_line

#: The number of differing forms in the table; the JSON file has all of them.
SHOWN = 4
#: Parts of torch's messages about a missing kernel, gradient or function argument.
LACKING = (
    "not implemented",
    "not supported",
    "not support",
    "Could not run 'aten::",
    "and is now removed",
    "doesn't support",
    "expected scalar type",
    "requires compiling",
    "got an unexpected keyword argument",
    "must be Tensor, not tuple",
    "is not differentiable with respect to argument",
    "isDifferentiableType",  # torch.lu of 1.6 and 1.7, with gradients
)


def reason_to_leave_out(error):
    """Return the reason if an exception says that this torch has no kernel on the device, or None."""
    text = first_line(error)
    return "this torch has no kernel: " + text if any(words in text for words in LACKING) else None


def check_casts(device, quick=False):
    """Yield a row for each backend and low dtype: do the functions of the op table return the table's dtypes?

    Args:
        device: "cpu", "cuda", …
        quick: float16 only.
    """
    table = functions()
    for pair in (HALF,) if quick else (HALF, BFLOAT16):
        for name in casting.BACKENDS:
            case = f"{name}, {dtype_name(pair.low)}"
            try:
                casting.choose(features.read(), name, pair)
                torch.ones(2, 2, device=device).to(pair.low).add(1.0)
            except (AmpError, RuntimeError) as error:
                yield CheckResult("conformance", case, NOT_RUN, first_line(error))
                continue
            yield _row(case, _outcomes(name, pair, table, device), name)


def _outcomes(name, pair, table, device):
    backend = casting.BACKENDS[name](pair)
    backend.set_devices({device.partition(":")[0]})
    with PatchStack() as patches, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, on deprecated names
        _turn_off_tf32(patches)  # results are compared with float64
        backend.open(patches)
        return compare_all(backend, table, pair, Device(device), reason_to_leave_out)


def _turn_off_tf32(patches):
    for library in (getattr(torch.backends.cuda, "matmul", None), torch.backends.cudnn):
        if hasattr(library, "allow_tf32"):
            patches.defer(setattr, library, "allow_tf32", library.allow_tf32)
            library.allow_tf32 = False


def _row(case, outcomes, name):
    wrong = {"{}.{} {}".format(*key): problem for key, problem in outcomes.wrong.items()}
    left_out = {"{}.{} {}".format(*key): reason for key, reason in outcomes.left_out.items()}
    found = f"{outcomes.counts[AGREES]} forms agree"
    if left_out:
        found += f", {len(left_out)} without a kernel"
    if wrong:
        shown = ["{}: {}".format(*each) for each in list(wrong.items())[:SHOWN]]
        rest = [f"and {len(wrong) - SHOWN} more, in the JSON file"] if len(wrong) > SHOWN else []
        found += ", {} differ: {}".format(len(wrong), "; ".join(shown + rest))
    other = "patched" if name == "native" else "native"
    advice = f"Use --backend {other} if that has no failure. {REPORT}"
    return CheckResult.of("conformance", case, not wrong, found, advice, wrong=wrong, left_out=left_out)
