"""Run what was written for CUDA on the device at hand.

Owns: ``redirect_device``; the rooms behind it hold what takes the place of each part of CUDA's interface.
Must not touch: anything while no redirection is in force.
The surprise: it is done by plain replacements of torch's names (``tables.redirections``), not by torch's function
modes. They hold in every thread, cost nothing per call outside the replaced names, work on every torch since 1.3, and
leave ``torch.compile`` and the modes of others alone; modes begin with torch 2.0, belong to one thread, and see
neither ``torch.cuda`` nor classes.
"""

from contextlib import ExitStack, contextmanager

from ..runtime import state

__all__ = ["redirect_device"]


@contextmanager
def redirect_device(device):
    """Redirect CUDA to a device inside, in the whole process; everything is as it was afterwards.

    Children that are not forked are not redirected; ``python -m ampcompat run --device`` redirects a script and all
    its children. What ``amp.initialize`` began inside ends with it: its models are plain float32 ones afterwards.

    Args:
        device: "cpu", "mps" or "xpu".

    Raises:
        AmpValueError: this machine or torch has no such device.
    """
    from .redirection import Redirection

    redirection = Redirection(device)
    redirection.begin()
    with ExitStack() as leaving:
        leaving.callback(redirection.undo)
        # Before that: a session wraps our stand-ins, and would put them back when we are gone.
        leaving.callback(_close_all_but, list(state.sessions))
        yield redirection.target


def _close_all_but(earlier):
    for session in reversed(list(state.sessions)):
        if session not in earlier:
            session.close()
