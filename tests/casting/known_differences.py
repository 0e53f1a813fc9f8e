"""Rows on which a backend is known to differ from the op table: {(backend, low dtype, owner, name, inputs): why}.

A row in here that agrees after all fails the test, so that the list cannot rot. On the CPU with torch 2.13: none.
"""

from ampcompat.support.torch_compat import features

KNOWN_DIFFERENCES = {}

if features.is_version_within(oldest="1.10", newest="1.11"):
    for name in ("dot", "vdot"):
        for owner in ("torch", "torch.Tensor"):
            row = ("native", "bfloat16", owner, name, "low")
            KNOWN_DIFFERENCES[row] = "autocast of torch 1.10 and 1.11 computes it in float32"
