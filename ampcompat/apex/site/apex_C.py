"""One flat tensor for many, and back."""

import importlib.util

if importlib.util.find_spec("ampcompat") is None:  # a checkout that is not on sys.path; `apex` finds it
    import apex  # noqa: F401

from ampcompat.apex.multi_tensor.functions import flatten, unflatten  # noqa: E402
