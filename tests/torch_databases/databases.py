"""torch's own databases of operators, modules and optimizers, imported so that the rest of the suite does not notice.

Importing them takes about 10 s and sets switches of the whole process; those are put back at once.
"""

import contextlib
import gc
import importlib
import inspect
import traceback

import pytest
import torch

INTERNAL = "torch.testing._internal."


@contextlib.contextmanager
def _process_settings_kept():
    import hypothesis

    dtype = torch.get_default_dtype()
    script_calls = [(kind, kind.__call__) for kind in (torch._C.ScriptFunction, torch._C.ScriptMethod)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.backends, "disable_global_flags", lambda: None)
        yield
    for kind, call in script_calls:
        kind.__call__ = call
    torch.set_default_dtype(dtype)  # old torch makes it float64
    hypothesis.settings.load_profile("slow")  # that of conftest


def load(module, name):
    """Return a database, such as ``load("common_methods_invocations", "op_db")``; skip the test where there is none."""
    release = tuple(map(int, torch.__version__.split(".")[:2]))
    first = (2, 3) if module == "common_optimizers" else (2, 0)
    if release < first:
        pytest.skip("torch before {}.{} has no such database".format(*first))
    for needed in ("expecttest", "yaml")[: 2 if release < (2, 3) else 1]:
        pytest.importorskip(needed, reason=f"torch's databases import {needed}")
    with _process_settings_kept():
        if release < (2, 3):
            importlib.import_module(INTERNAL + "jit_metaprogramming_utils")  # now, as operators import it
        database = getattr(importlib.import_module(INTERNAL + module), name)
    gc.collect()
    gc.freeze()  # half a million objects, which each session would look through for optimizers
    return database


@contextlib.contextmanager
def no_call_stacks():
    """Let torch read no call stack: to find the unittest that asks for samples, and where the seed of a GPU was set.

    It would do so at each call, and read the source of all modules for it. No stack is that of no unittest.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inspect, "stack", lambda *_: [])
        patch.setattr(traceback, "format_stack", lambda *_: [])
        yield
