"""What a hook is built on: mmcv's own ``Hook`` where there is an mmcv with one, ours where there is none.

Owns: ``Hook``.
Must not touch: mmcv.
The surprise: mmcv's runner takes nothing but its own kind of hook, so an mmcv that is installed is imported here.
From 2.0 on it has no runner; then, and where it cannot be imported, a hook is a plain class.
"""

import importlib
import importlib.util

STAGES = (
    "before_run",
    "after_run",
    "before_epoch",
    "after_epoch",
    "before_iter",
    "after_iter",
    "before_train_epoch",
    "after_train_epoch",
    "before_train_iter",
    "after_train_iter",
    "before_val_epoch",
    "after_val_epoch",
    "before_val_iter",
    "after_val_iter",
)


def runner_of_mmcv():
    """Return the module ``mmcv.runner``, or None where there is no mmcv with one."""
    if importlib.util.find_spec("mmcv") is None:
        return None
    try:
        return importlib.import_module("mmcv.runner")
    except Exception:  # whatever is wrong with it (its torchvision, mostly) is told to those who import it themselves
        return None


def _nothing(self, runner):
    """Do nothing at this stage."""


_runner = runner_of_mmcv()
Hook = type("Hook", (), dict.fromkeys(STAGES, _nothing)) if _runner is None else _runner.Hook
