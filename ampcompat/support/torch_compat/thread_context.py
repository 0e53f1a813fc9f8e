"""The state of the calling thread: tracing, function transforms, inference mode, hooks, torch.distributed.

Each query returns None, False or an empty list if this torch does not have the feature.
"""

import contextlib
import functools

import torch
import torch.utils.checkpoint

from .thread_blocks import ThreadBlock, grad_enabled

_autograd = getattr(torch._C, "_autograd", None)
_overrides = getattr(torch, "overrides", None)


def _never():
    return None


def _zero():
    return 0


#: The level of torch.func's innermost transform, or None.
functorch_level = getattr(getattr(torch._C, "_functorch", None), "peek_interpreter_stack", _never)
#: The state of ``torch.jit.trace``, or None.
jit_tracing_state = getattr(torch._C, "_get_tracing_state", _never)
#: The number of active dispatch modes (torch 2.0), such as that of fake tensors.
dispatch_modes = getattr(torch._C, "_len_torch_dispatch_stack", _zero)
#: Whether inference mode is on.
in_inference_mode = getattr(torch, "is_inference_mode_enabled", _never)

_graph_task_id = getattr(torch._C, "_current_graph_task_id", lambda: -1)


def is_in_backward():
    """Return whether a backward pass is running (torch 2.1), as for a hook, or a pass that recomputes a checkpoint."""
    return _graph_task_id() != -1


#: The base class of dispatch modes (torch 1.13); ``object`` in torch without them.
DispatchMode = getattr(getattr(torch.utils, "_python_dispatch", None), "TorchDispatchMode", object)
#: The base class of function modes (torch 2.0); ``object`` in torch without them.
FunctionMode = getattr(_overrides, "TorchFunctionMode", object)
#: The list of active function modes, outermost first.
function_modes = getattr(_overrides, "_get_current_function_mode_stack", list)


def add_function_mode(mode):
    """Enter a function mode in this thread, outside of all others, since blocks that began earlier may end before it.

    Only that of ``torch.set_default_device`` stays the outermost, since torch looks for it there.
    """
    default = getattr(getattr(torch, "_GLOBAL_DEVICE_CONTEXT", None), "device_context", None)
    with _without_inner_function_modes(lambda active: active is default):
        mode.__enter__()


def remove_function_mode(mode):
    """Undo ``add_function_mode``, wherever the mode is in the stack."""
    if mode not in function_modes():
        return  # of another thread
    with _without_inner_function_modes(lambda active: active is mode):
        torch._C._pop_torch_function_stack()


@contextlib.contextmanager
def _without_inner_function_modes(ends):
    """Return a context manager in which the function modes within the one for which ``ends`` is true are inactive."""
    held = []
    try:
        while function_modes() and not ends(function_modes()[-1]):
            held.append(torch._C._pop_torch_function_stack())
        yield
    finally:
        for other in reversed(held):
            torch._C._push_on_torch_function_stack(other)


@contextlib.contextmanager
def recording_gradients():
    """Return a context manager in which autograd records operations, whatever the mode of this thread."""
    with _outside_of_inference_mode(), grad_enabled(True):
        yield


@contextlib.contextmanager
def without_gradients():
    """Return a context manager in which autograd records nothing, but whose results it accepts later."""
    with _outside_of_inference_mode(), grad_enabled(False):
        yield


def _outside_of_inference_mode():
    return torch.inference_mode(False) if in_inference_mode() else contextlib.nullcontext()


#: Return a context manager in which no dispatch mode is active.
without_dispatch_modes = getattr(
    getattr(torch.utils, "_python_dispatch", None), "_disable_current_modes", contextlib.nullcontext
)


def tried_once(function):
    """Return ``function`` cached and run while autograd records, outside of inference mode and of dispatch modes.

    It tests torch: fake tensors have no values, and tensors of inference mode no versions.
    A function that tests a device must read a result: some devices compute, and fail, only then.
    """

    @functools.lru_cache(maxsize=None)
    @functools.wraps(function)
    def tried(*args):
        try:
            with without_dispatch_modes(), recording_gradients():
                return function(*args)
        except (AssertionError, RuntimeError):  # this torch or machine does not have the device: a mode replaces it
            with recording_gradients():
                return function(*args)

    return tried


def is_capturing_cuda_graph():
    """Return whether a CUDA graph is being captured in this stream."""
    # Read at each call, because ``cuda_redirect`` may replace it.
    return getattr(torch.cuda, "is_current_stream_capturing", _never)()


def saved_tensor_hooks():
    """Return the (pack, unpack) pair of the innermost saved-tensor hooks; None also if torch cannot report it."""
    top = getattr(_autograd, "_top_saved_tensors_default_hooks", None)
    return None if top is None else top(False)


class SavedTensorHooks(ThreadBlock):
    """Context manager: ``torch.autograd.graph.saved_tensors_hooks``; needs a torch that can report them."""

    def __init__(self, pack, unpack):
        self._functions = pack, unpack
        self._hooks = torch.autograd.graph.saved_tensors_hooks(pack, unpack)

    def begin(self):
        """Make them the innermost hooks."""
        self._hooks.__enter__()

    def end(self):
        """Remove them."""
        if saved_tensor_hooks() == self._functions:
            self._hooks.__exit__()


def takes_saved_tensor_hooks():
    """Return whether saved-tensor hooks (torch 1.10) can be entered now."""
    is_enabled = getattr(_autograd, "_saved_tensors_hooks_is_enabled", None)
    has_hooks = hasattr(getattr(torch.autograd, "graph", None), "saved_tensors_hooks")
    return has_hooks and (is_enabled is None or is_enabled())


def in_selective_checkpoint():
    """Return whether the current operations are run or recomputed by a selective checkpoint (torch >= 2.4)."""
    forward = getattr(torch.utils.checkpoint, "_CachingTorchDispatchMode", None)
    if forward is None:
        return False
    recomputation = torch.utils.checkpoint._CachedTorchDispatchMode
    return isinstance(torch.utils._python_dispatch._get_current_dispatch_mode(), (forward, recomputation))


def in_process_group():
    """Return whether torch.distributed is initialized."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def world_size():
    """Return the number of processes: 1 without a process group."""
    return torch.distributed.get_world_size() if in_process_group() else 1
