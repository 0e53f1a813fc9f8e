"""``redirect_device``: run code written for CUDA on another device; ``launch/cuda_redirect/`` does it."""

from contextlib import ExitStack, contextmanager

from .engine.session import process_state
from .launch.cuda_redirect.redirection import Redirection

__all__ = ["redirect_device"]


@contextmanager
def redirect_device(device):
    """Return a context manager that redirects CUDA to a device, in the whole process.

    Child processes that are not forked are not redirected; ``ampcompat run --device`` redirects a script and
    all its children. Sessions that ``amp.initialize`` opens in the block are closed at its end, so their models are
    float32 again.

    Args:
        device: "cpu", "mps", "xpu" or "xla".

    Raises:
        AmpValueError: this machine or torch has no such device.
    """
    redirection = Redirection(device)
    redirection.begin()
    with ExitStack() as leaving:
        leaving.callback(redirection.undo)
        # Closed first: a session wraps the replacements, and would restore them when it is closed.
        leaving.callback(_close_all_but, list(process_state.sessions))
        yield redirection.target


def _close_all_but(earlier):
    for session in reversed(list(process_state.sessions)):
        if session not in earlier:
            session.close()
