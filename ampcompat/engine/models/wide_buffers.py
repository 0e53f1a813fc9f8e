"""The values that the float buffers of a module had before they were cast to half.

They are compared with what is in the half buffers later, so nothing has to notice what a script writes. The object
is in the module's own ``__dict__``, so that copies, pickles and replicas of the module have one, too.
"""

import torch

from ...support import tensor_lists
from ...support.torch_compat import fake_tensors
from ..master_weights.take_written_values import kept_where_equal

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
