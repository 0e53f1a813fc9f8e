"""torch's own databases of operators, modules and optimizers, imported so that the rest of the suite does not notice.

Importing them takes about 10 s and sets switches of the whole process; those are put back at once.
"""

import contextlib
import importlib

import pytest
import torch

INTERNAL = "torch.testing._internal."


@contextlib.contextmanager
def _process_settings_kept():
    import hypothesis

    script_calls = [(kind, kind.__call__) for kind in (torch._C.ScriptFunction, torch._C.ScriptMethod)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.backends, "disable_global_flags", lambda: None)
        yield
    for kind, call in script_calls:
        kind.__call__ = call
    hypothesis.settings.load_profile("slow")  # that of conftest


def load(module, name):
    """Return a database, such as ``load("common_methods_invocations", "op_db")``; skip the test where there is none."""
    release = tuple(map(int, torch.__version__.split(".")[:2]))
    if release < (2, 12) and release != (2, 4):
        pytest.skip("the databases and half kernels of torch before 2.12 are others; of these, 2.4's were looked into")
    pytest.importorskip("expecttest", reason="torch's databases import expecttest")
    with _process_settings_kept():
        return getattr(importlib.import_module(INTERNAL + module), name)
