"""Operators of torch's database that are known to differ: {(what differs, operator, inputs, backend): why}.

What differs is one of "fails", "warns", "dtypes" (between the backends: "both"), "values" and "gradients". The entries
hold at O1 and at O4. An entry that no longer differs fails the test, so that the list cannot rot.
"""

BOTH = ("native", "patched")
KNOWN = {}


def _add(what, operators, inputs, why, backends=BOTH):
    KNOWN.update({(what, name, inputs, backend): why for name in operators.split() for backend in backends})


_add("fails", "nn.functional.binary_cross_entropy", "half", "the op table refuses it, as Apex did: specification, 4.5")
_CHUNKED = "it calls rows of the table inside, into which it writes: casts between them break it"
for _inputs in ("float32", "half"):
    _add("fails", "nn.functional.linear_cross_entropy.chunked", _inputs, _CHUNKED)
    _add("fails", "nn.functional.linear_cross_entropy.chunked_none", _inputs, _CHUNKED)
_add("fails", "masked.norm masked.normalize", "half", "they pass dtype=half to vector_norm, which gets float32 inputs")
_add("fails", "lu", "half", "no row of the table; autocast casts what it calls", ["patched"])
_add("dtypes", "corrcoef cov linalg.matrix_power", "float32", "no row; autocast casts the product inside", ["both"])
_GRID = "no row; autocast casts it to float32, as F.grid_sample"
_add("dtypes", "grid_sampler_2d grid_sampler_3d", "half", _GRID, ["both"])
_add("values", "grid_sampler_2d grid_sampler_3d", "half", _GRID, ["patched"])
_add("gradients", "grid_sampler_2d grid_sampler_3d", "half", _GRID, ["patched"])
_add("dtypes", "nn.functional.max_pool3d", "half", "no row; autocast of the CPU casts it to float32", ["both"])
