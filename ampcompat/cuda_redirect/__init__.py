"""Run code written for CUDA on another device.

Names of torch are replaced one by one (see ``name_table``), not by torch's function modes: replacements apply in every
thread, add no overhead to other names, work with every torch since 1.3, and do not interfere with ``torch.compile`` or
modes of the user. Function modes need torch 2.0, apply to one thread, and handle neither ``torch.cuda`` nor classes.
"""

from contextlib import ExitStack, contextmanager

__all__ = ["redirect_device"]


@contextmanager
def redirect_device(device):
    """Return a context manager that redirects CUDA to a device, in the whole process.

    Child processes that are not forked are not redirected; ``ampcompat run --device`` redirects a script and
    all its children. Sessions that ``amp.initialize`` opens in the block are closed at its end, so their models are
    float32 again.

    Args:
        device: "cpu", "mps" or "xpu".

    Raises:
        AmpValueError: this machine or torch has no such device.
    """
    # Imported late, since Python imports this package at startup and a script may need neither of them.
    from ..engine.session import process_state
    from .redirection import Redirection

    redirection = Redirection(device)
    redirection.begin()
    with ExitStack() as leaving:
        leaving.callback(redirection.undo)
        # Closed first: a session wraps the replacements, and would restore them when it is closed.
        leaving.callback(_close_all_but, process_state, list(process_state.sessions))
        yield redirection.target


def _close_all_but(state, earlier):
    for session in reversed(list(state.sessions)):
        if session not in earlier:
            session.close()
