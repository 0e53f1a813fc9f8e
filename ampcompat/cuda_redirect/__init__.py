"""Run code written for CUDA on another device.

Names of torch are replaced one by one (see ``name_table``), not by torch's function modes: replacements hold in
every thread, cost nothing for other names, work on every torch since 1.3, and do not interfere with ``torch.compile``
and the modes of users. Function modes need torch 2.0, belong to one thread, and see neither ``torch.cuda`` nor classes.
"""

from contextlib import ExitStack, contextmanager

__all__ = ["redirect_device"]


@contextmanager
def redirect_device(device):
    """Return a context manager that redirects CUDA to a device, in the whole process.

    Child processes that are not forked are not redirected; ``python -m ampcompat run --device`` redirects a script and
    all its children. Sessions that ``amp.initialize`` opens inside are closed at the end, so their models are float32.

    Args:
        device: "cpu", "mps" or "xpu".

    Raises:
        AmpValueError: this machine or torch has no such device.
    """
    # Late, since Python imports this package when it starts, where a script may never need either.
    from ..engine.session import process_state
    from .redirection import Redirection

    redirection = Redirection(device)
    redirection.begin()
    with ExitStack() as leaving:
        leaving.callback(redirection.undo)
        # Before that: a session wraps the replacements, and would restore them when it is closed.
        leaving.callback(_close_all_but, process_state, list(process_state.sessions))
        yield redirection.target


def _close_all_but(state, earlier):
    for session in reversed(list(state.sessions)):
        if session not in earlier:
            session.close()
