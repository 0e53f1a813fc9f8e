"""Metrics that a script logs: by ``log``, or by ``add_scalar`` of a TensorBoard ``SummaryWriter``, unchanged."""

import contextlib
import sys

from ...launch.after_import import ImportHook
from ...support.patching import PatchStack

#: Modules with a class ``SummaryWriter``.
WRITERS = ("torch.utils.tensorboard.writer", "tensorboardX.writer")

#: The recorders of the runs in progress.
_recorders = []


def log(name, value):
    """Record a metric, such as an accuracy, in the run that ``ab`` or ``compare`` records; otherwise do nothing.

    Args:
        name: a string.
        value: a number, or a tensor with one element; reading it waits for its device.
    """
    for recorder in _recorders:
        recorder.log(str(name), float(value))


@contextlib.contextmanager
def recording(recorder):
    """Pass everything that is logged within the block to ``recorder.log(name, value)``."""
    _recorders.append(recorder)
    with PatchStack() as patches:
        missing = [name for name in WRITERS if name not in sys.modules]
        hook = ImportHook(missing, lambda name: _patching(name, patches))
        hook.start()
        for name in WRITERS:
            _patch_writer(name, patches)
        try:
            yield
        finally:
            hook.stop()
            _recorders.remove(recorder)


@contextlib.contextmanager
def _patching(name, patches):
    yield  # the module's body runs here
    _patch_writer(name, patches)


def _patch_writer(name, patches):
    writer = getattr(sys.modules.get(name), "SummaryWriter", None)
    if writer is not None:
        patches.wrap(writer, "add_scalar", _log_and_add)


def _log_and_add(add_scalar, writer, tag, scalar_value, *args, **kwargs):
    log(tag, scalar_value)
    return add_scalar(writer, tag, scalar_value, *args, **kwargs)
