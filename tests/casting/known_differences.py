"""Rows on which a backend is known to differ from the op table: {(backend, low dtype, owner, name, inputs): why}.

A row in here that agrees after all fails the test, so that the list cannot rot. On the CPU with torch 2.13: none.
"""

KNOWN_DIFFERENCES = {}
