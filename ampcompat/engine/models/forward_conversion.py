"""``ForwardConversion``, which casts the inputs and outputs of a model's ``forward`` and runs it in a context.

The class is patched and the instance only marked. A closure on the instance would be copied into deep copies and
DataParallel replicas and run the original's weights; a mark is plain data that copies and pickles. The class is
restored when the last of its marked instances is closed or garbage-collected.
"""

import functools
import threading
import weakref
from contextlib import nullcontext

import torch

from ...support.containers import cast_floating
from ...support.patching import PatchStack, wraps_method
from ..casting.emulated_half_models import context_of
from ..casting.torch_compile import UNROLLS_SEQUENTIAL, change_settings

MARK = "_amp_forward"

#: Held while a class is patched or restored. Reentrant: garbage collection may end a mark at any time.
_LOCK = threading.RLock()
_conversions = weakref.WeakKeyDictionary()  # class -> those of its instances, which may be closed


class ForwardConversion:
    """What to do around one model's ``forward``.

    Args:
        input_dtype: floating tensors among the arguments are cast to this; None leaves them.
        output_dtype: floating tensors in the output are cast to this; None leaves them.
        mode: the ``HalfMode`` in which ``forward`` runs, or None.
        context: a function that returns the context manager in which ``forward`` runs, or None for no context. It
            belongs to a session and is not pickled. None means never a context.
        token: the ``Token`` that all marks of one session share; closing it ends them. None makes one of its own: that
            of a copy whose inputs are cast outlives the session.
    """

    def __init__(self, owner, input_dtype=None, output_dtype=None, mode=None, context=None, token=None):
        self.owner = owner
        self.input_dtype = input_dtype
        self.output_dtype = output_dtype
        self.mode = mode
        self.context = context
        self.token = Token() if token is None else token
        if not issubclass(owner, torch.jit.ScriptModule):  # its class has no ``forward``; ``mark`` sets one
            _patch_class(self)

    def run(self, forward, model, args, kwargs):
        """Call ``forward(model, *args, **kwargs)`` with its conversions."""
        if self.input_dtype is not None:
            args = tuple([cast_floating(value, self.input_dtype) for value in args])
            kwargs = {name: cast_floating(value, self.input_dtype) for name, value in kwargs.items()}
        context = None if self.context is None else self.context()
        mode = None if self.mode is None else context_of(self.mode)
        if context is None and mode is None:
            output = forward(model, *args, **kwargs)
        else:
            with context or nullcontext(), mode or nullcontext():
                output = forward(model, *args, **kwargs)
        return output if self.output_dtype is None else cast_floating(output, self.output_dtype)

    def __deepcopy__(self, memo):
        token = self.token if self.input_dtype is None else None  # its weights stay as they are cast
        return ForwardConversion(self.owner, self.input_dtype, self.output_dtype, self.mode, self.context, token)

    def __reduce__(self):
        options = () if self.token.closed else (self.input_dtype, self.output_dtype, self.mode)
        return ForwardConversion, (self.owner, *options)


class Token:
    """Shared by marks, which all end when it is closed."""

    closed = False

    def close(self):
        """Make the marked models run as if they had never been marked."""
        self.closed = True
        with _LOCK:
            for owner in list(_conversions):
                _restore_class_if_unused(owner)


class InstanceForward:
    """Replaces a ``forward`` of the instance: one that a user has set there, or that of a TorchScript module."""

    def __init__(self, conversion, forward):
        self.conversion = conversion
        self.forward = forward
        functools.update_wrapper(self, forward, updated=())

    def __call__(self, *args, **kwargs):
        return self.conversion.run(self._call, None, args, kwargs)

    def _call(self, model, *args, **kwargs):
        return self.forward(*args, **kwargs)


def mark(model, conversion, patches):
    """Mark ``model`` with ``conversion``; undone by ``patches``."""
    change_settings(patches)  # the model may be compiled already
    patches.set_in_dict(model, MARK, conversion)
    if UNROLLS_SEQUENTIAL:
        patches.set_in_dict(model, "torchdynamo_force_dynamic", True)
    if "forward" in vars(model) or isinstance(model, torch.jit.ScriptModule):
        patches.set_in_dict(model, "forward", InstanceForward(conversion, model.forward))


def unmark(module):
    """Let a module, a copy whose weights are float32, run without conversions."""
    vars(module).pop(MARK, None)
    if isinstance(vars(module).get("forward"), InstanceForward):
        module.forward = vars(module)["forward"].forward


def is_marked(model):
    """Return whether a model has a mark that is not closed."""
    conversion = vars(model).get(MARK)
    return conversion is not None and not conversion.token.closed


def _patch_class(conversion):
    owner = conversion.owner
    weakref.finalize(conversion, _restore_class_if_unused, owner).atexit = False
    with _LOCK:
        if conversion.token.closed:
            return
        _conversions.setdefault(owner, weakref.WeakSet()).add(conversion)  # from now on the class is not restored
        if not hasattr(vars(owner).get("forward"), "amp_patches"):
            forward = _casting_forward(owner, owner.forward)
            forward.amp_patches = PatchStack()
            forward.amp_patches.set(owner, "forward", forward)
            # Found at once on instances that are not marked; nn.Module.__getattr__ fails slowly.
            forward.amp_patches.set(owner, MARK, None)


def _restore_class_if_unused(owner):
    with _LOCK:
        forward = vars(owner).get("forward")
        if hasattr(forward, "amp_patches") and all([each.token.closed for each in _conversions.get(owner, ())]):
            forward.amp_patches.undo()


def _casting_forward(owner, original):
    @wraps_method(original)
    def forward(self, *args, **kwargs):
        conversion = getattr(self, MARK, None)
        # For a marked instance of a subclass that calls super().forward(), the inputs have been cast already.
        if conversion is None or conversion.owner is not owner or conversion.token.closed:
            return original(self, *args, **kwargs)
        return conversion.run(original, self, args, kwargs)

    return forward
