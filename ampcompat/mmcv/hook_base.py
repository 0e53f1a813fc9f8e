"""The base class of the hooks: ``mmcv.runner.Hook`` if mmcv 1.x is installed, otherwise a plain class.

mmcv's runner accepts only subclasses of its own ``Hook``. From 2.0 on mmcv has no runner.
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


def import_mmcv_runner():
    """Return the module ``mmcv.runner``, or None if no mmcv that has one is installed."""
    if importlib.util.find_spec("mmcv") is None:
        return None
    try:
        return importlib.import_module("mmcv.runner")
    except Exception:  # an error in it (usually of its torchvision) is raised again when the user imports it
        return None


def _do_nothing(self, runner):
    """Do nothing at this stage."""


_runner = import_mmcv_runner()
Hook = type("Hook", (), dict.fromkeys(STAGES, _do_nothing)) if _runner is None else _runner.Hook
