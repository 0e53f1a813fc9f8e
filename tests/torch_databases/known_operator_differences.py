"""Operators of torch's database that are known to differ: {(what differs, operator, inputs, backend): why}.

What differs is one of "fails", "warns", "dtypes" (between the backends: "both"), "values" and "gradients". The entries
hold at O1 and at O4. An entry that no longer differs fails the test, so that the list cannot rot.
"""

from ampcompat.support.torch_compat import features

BOTH = ("native", "patched")
KNOWN = {}


def _add(what, operators, inputs, why, backends=BOTH, before=None):
    """Add operators; those of a torch ``before`` a release only with such a torch."""
    if before is not None and features.is_version_within(oldest=before):
        return
    KNOWN.update({(what, name, inputs, backend): why for name in operators.split() for backend in backends})


_add("fails", "nn.functional.binary_cross_entropy", "half", "the op table refuses it, as Apex did: specification, 4.5")
FRACTIONAL = "nn.functional.fractional_max_pool2d nn.functional.fractional_max_pool3d"
_add("fails", FRACTIONAL, "half", "CPU autocast computes it in float32, torch has no half kernels", before="2.3")
