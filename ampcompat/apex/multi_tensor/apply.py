"""``multi_tensor_applier``, an instance of ``MultiTensorApply``: calls functions of ``amp_C`` on lists of tensors."""

from . import functions


class MultiTensorApply:
    """Calls functions of ``amp_C`` with the chunk size, which has no effect here, as the first argument."""

    def __init__(self, chunk_size):
        self.chunk_size = chunk_size

    @property
    def available(self):
        """Whether every function of ``amp_C`` that users of Apex call exists."""
        # Checked at each call, because libraries branch on it.
        return all(callable(getattr(functions, name, None)) for name in functions.__all__)

    def check_avail(self):
        """Raise if ``available`` is false."""
        if not self.available:
            raise RuntimeError("some functions of amp_C are missing")

    def __call__(self, op, noop_flag_buffer, tensor_lists, *args):
        """Return the result of ``op(chunk_size, noop_flag_buffer, tensor_lists, *args)``."""
        return op(self.chunk_size, noop_flag_buffer, tensor_lists, *args)


multi_tensor_applier = MultiTensorApply(2048 * 32)
