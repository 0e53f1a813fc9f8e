"""Operators of torch's database that are known to differ: {(what differs, operator, inputs, backend): why}.

What differs is one of "fails", "warns", "dtypes" (between the backends: "both"), "values" and "gradients". The entries
hold at O1 and at O4. An entry that no longer differs fails the test, so that the list cannot rot.
"""

BOTH = ("native", "patched")
KNOWN = {}


def _add(what, operators, inputs, why, backends=BOTH):
    KNOWN.update({(what, name, inputs, backend): why for name in operators.split() for backend in backends})


_add("fails", "nn.functional.binary_cross_entropy", "half", "the op table refuses it, as Apex did: specification, 4.5")
