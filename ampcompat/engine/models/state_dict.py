"""Hooks on a cast model's state dict, which make checkpoints float32 and load them into the masters.

Where a half weight has a master, the master's value is saved, because the half weight has lost bits that a resumed
run needs. If the script has changed the half weight since (an EMA swap), the weight's own value is saved. Copies and
pickles of a model have hooks without masters.

``WideBuffers`` holds the values that the float buffers of a module had before they were cast to half. They are compared
with what is in the half buffers later, so nothing has to notice what a script writes. The object is in the module's own
``__dict__``, so that copies, pickles and replicas of the module have one, too.
"""

import functools
import weakref

import torch

from ...support import tensor_lists
from ...support.swapped_tensors import holders
from ...support.torch_compat import fake_tensors
from ..masters.master_sync import kept_where_equal
from ..masters.session_masters import SessionMasters

#: The attribute of a module that holds its ``WideBuffers``.
WIDE_BUFFERS = "_amp_wide_buffers"


class WideBuffers:
    """The buffers of one module that were cast to half. Only values that half numbers cannot hold take memory.

    Args:
        buffers: the dict of the module's buffers.
    """

    def __init__(self, buffers):
        self._buffers = buffers
        self._dtypes = {}  # name -> dtype before the cast
        self._values = {}  # name -> value before the cast, or the value that was loaded since

    def keep(self, name, value, low):
        """Keep the value that a buffer has before its cast to ``low``."""
        self._dtypes[name] = value.dtype
        self._keep(name, value, low)

    def _keep(self, name, value, low):
        has_values = value.device.type != "meta" and not fake_tensors.is_fake_type(type(value))
        if has_values and not torch.equal(value.to(low).to(value.dtype), value):
            self._values[name] = value
        else:
            self._values.pop(name, None)

    def widened(self, name, now):
        """Return what a half buffer has now, in its dtype before the cast; None if it was not cast.

        Elements that are still the rounded ones of before have the value of before.
        """
        if name not in self._dtypes:
            return None
        value = self._values.get(name)
        if value is None or value.shape != now.shape:
            return now.to(self._dtypes[name])
        return kept_where_equal(value.to(now.device), now)

    def load(self, state_dict, prefix):
        """Keep what is loaded into half buffers, before it is rounded."""
        for name, dtype in self._dtypes.items():
            value, now = state_dict.get(prefix + name), self._buffers.get(name)
            if isinstance(value, torch.Tensor) and now is not None and tensor_lists.is_narrower(now, dtype):
                if value.shape == now.shape:
                    self._keep(name, value.detach().to(now.device, dtype, copy=True), now.dtype)


class O2StateDictHook:
    """Casts floating entries of a module's state dict to ``dtype``. torch's ONNX exporter looks for this class name."""

    def __init__(self, dtype, masters):
        self.dtype = dtype
        self.masters = masters
        self.params = weakref.WeakValueDictionary()  # id -> each param that the hooked modules had at the time
        self._names = {}  # id(param or buffer) -> the key of its last cast
        holders.add(self)

    def release(self, param):
        """Forget a param that gets another tensor (``swapped_tensors``); return a function that adds it again."""
        if self.params.pop(id(param), None) is None:
            return None
        return functools.partial(self.params.__setitem__, id(param), param)

    def __call__(self, module, state_dict, prefix, local_metadata):
        """Replace the module's own entries in ``state_dict`` that are tensors, and those of submodules without hook.

        A script may have added these since: ``torch.nn.utils.parametrize`` makes some, with params of the dtype that
        the module has.
        """
        self.masters.show_written()
        buffers = vars(module).get(WIDE_BUFFERS)
        named = list(module._parameters.items()) + list(module._buffers.items())
        for name, owned in named:
            key = prefix + name
            value = state_dict.get(key)
            if isinstance(value, torch.Tensor) and tensor_lists.is_narrower(value, self.dtype):
                tied = self._tied(state_dict, owned, value)
                if tied is None:
                    wide = None if buffers is None else buffers.widened(name, value)
                    tied = self._widened(owned, value) if wide is None else wide.to(self.dtype)
                state_dict[key] = tied
                self._names[id(owned)] = key
        for name, child in module._modules.items():
            if child is not None and _hook_of(child, self.masters) is None:
                self(child, state_dict, prefix + name + ".", local_metadata)
        return state_dict

    def _tied(self, state_dict, owned, value):
        """Return the tensor that this weight was cast to earlier in this state dict, so that tied weights stay tied."""
        other = state_dict.get(self._names.get(id(owned)))
        if isinstance(other, torch.Tensor) and other.dtype is self.dtype and other.shape == value.shape:
            return other if torch.equal(other.to(value.dtype), value) else None
        return None

    def _widened(self, owned, value):
        # ``keep_vars=True`` asks for what is connected to the param.
        wide = None if value.requires_grad else self.masters.widened(owned, value)
        return value.to(self.dtype) if wide is None else wide

    def __reduce__(self):
        return O2StateDictHook, (self.dtype, SessionMasters())


class RefreshMasters:
    """Copies what is loaded into a module's half params and buffers first, before it is rounded: to their masters.

    Args:
        module: whose params; None in copies of a model, whose params have no masters.
        buffers: the ``WideBuffers`` of the module, or None.
    """

    def __init__(self, module, masters, buffers=None):
        self._params = {} if module is None else module._parameters
        self._masters = masters
        self._buffers = buffers

    def __call__(self, state_dict, prefix, *rest):
        """Run as a pre-hook of ``_load_from_state_dict``."""
        for name, param in self._params.items():
            self._masters.load(param, state_dict.get(prefix + name))
        if self._buffers is not None:
            self._buffers.load(state_dict, prefix)

    def __reduce__(self):
        return RefreshMasters, (None, SessionMasters(), self._buffers)


def new_modules(model, masters):
    """Return the modules without a ``hook`` for these masters, and those whose params have been replaced since."""
    return [module for module in model.modules() if _is_new_module(module, masters)]


def _is_new_module(module, masters):
    hooked = _hook_of(module, masters)
    if hooked is None:
        return True
    params = [param for param in module._parameters.values() if param is not None]
    return any(hooked.params.get(id(param)) is not param for param in params)


def _hook_of(module, masters):
    for each in module._state_dict_hooks.values():
        if getattr(each, "masters", None) is masters:
            return each
    return None


def hook(modules, dtype, masters, patches):
    """Register the hooks on modules of a model; ``patches`` removes them."""
    widen = O2StateDictHook(dtype, masters)
    for module in modules:
        hooked = _hook_of(module, masters)
        if hooked is None:
            hooked = widen
            patches.register(module._register_state_dict_hook, widen, owner=module)
            refresh = RefreshMasters(module, masters, vars(module).get(WIDE_BUFFERS))
            patches.register(module._register_load_state_dict_pre_hook, refresh, owner=module)
        hooked.params.update((id(param), param) for param in module._parameters.values() if param is not None)
