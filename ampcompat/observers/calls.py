"""The calls of torch's functions, and of its operations below autograd: the two modes that observers are based on."""

import os

from ..engine.casting import torch_compile
from ..engine.casting.emulated_half_models import without_mode_checks
from ..support.torch_compat import fake_tensors, thread_context


class FunctionCalls(thread_context.FunctionMode):
    """A function mode that gets the calls of torch's public functions in this thread, between ``start`` and ``stop``.

    Subclasses define ``called(name, function, args, kwargs)``, which calls the function and returns its result. Neither
    forked workers, which inherit the mode, nor compilers, which trace it, call it.

    Attributes:
        ignored: the names of functions for which ``called`` is not called.
        is_paused: whether it is not called for any.
    """

    ignored = frozenset()
    is_paused = False

    def __init__(self):
        super().__init__()
        self._process = os.getpid()

    def start(self):
        """Get calls, outside of all other modes."""
        thread_context.add_function_mode(self)

    def stop(self):
        """Get no more calls."""
        thread_context.remove_function_mode(self)

    def __torch_function__(self, function, kinds, args=(), kwargs=None):
        """Call ``function`` by ``called``."""
        kwargs = kwargs or {}
        if torch_compile.is_compiling():  # first: a compiler traces this
            return function(*args, **kwargs)
        name = getattr(function, "__name__", "")
        if self.is_paused or name in self.ignored or os.getpid() != self._process:
            return function(*args, **kwargs)
        # Python functions of torch pass what is called by their name in their module: our wrapper, if there is one.
        return self.called(name, torch_compile.original(function), args, kwargs)

    def opened(self, function, args, kwargs):
        """Call a function of torch that calls others, and get their calls."""
        with self:
            return without_mode_checks(function)(*args, **kwargs)


class OperationCalls(thread_context.DispatchMode):
    """A dispatch mode that gets the operations of this thread, those of backward passes included; a context manager.

    Subclasses define ``called(function, args, kwargs)``, which calls the operation and returns its result. In forked
    workers, which inherit the mode, it is not called.
    """

    def __init__(self):
        super().__init__()
        self._process = os.getpid()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        """Call an operation by ``called``."""
        kwargs = kwargs or {}
        device = fake_tensors.answered_device(function, args)
        if device is not None:
            return device
        if os.getpid() != self._process:
            return function(*args, **kwargs)
        return self.called(function, args, kwargs)
