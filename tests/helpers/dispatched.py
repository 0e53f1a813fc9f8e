"""``Watch``: records the operations that torch dispatches below autograd.

Views that only rename a tensor are not counted.
"""

import torch


class Watch:
    """A context that lists dispatched operations; ``reads`` are those that copy a value to the host."""

    def __enter__(self):
        from torch.utils._python_dispatch import TorchDispatchMode

        self.calls = calls = []
        free = (torch.ops.aten.detach.default, torch.ops.aten.alias.default)

        class Mode(TorchDispatchMode):
            def __torch_dispatch__(self, function, types, args=(), kwargs=None):
                if function not in free:
                    calls.append(str(function))
                return function(*args, **(kwargs or {}))

        self._mode = Mode()
        self._mode.__enter__()
        return self

    def __exit__(self, *exc_info):
        self._mode.__exit__(*exc_info)

    @property
    def reads(self):
        """The number of values copied to the host."""
        return sum("_local_scalar_dense" in call for call in self.calls)
