"""``multi_tensor_applier``: how Apex's users call a function on lists of tensors.

Owns: ``MultiTensorApply``, ``multi_tensor_applier``.
Must not touch: the lists and the flag, which are the function's.
The surprise: ``available`` asks each time whether every function of ``amp_C`` is there, because libraries choose their
code by it.
"""

from . import functions


class MultiTensorApply:
    """Calls functions of ``amp_C``, with the chunk size that they want first.

    Args:
        chunk_size: how many elements a block of threads took in Apex; without effect here.
    """

    def __init__(self, chunk_size):
        self.chunk_size = chunk_size

    @property
    def available(self):
        """Whether every function of ``amp_C`` that Apex's users call is there."""
        return all(callable(getattr(functions, name, None)) for name in functions.__all__)

    def check_avail(self):
        """Raise if ``available`` is false."""
        if not self.available:
            raise RuntimeError("some functions of amp_C are missing")

    def __call__(self, op, noop_flag_buffer, tensor_lists, *args):
        """Return what ``op(chunk_size, noop_flag_buffer, tensor_lists, *args)`` returns."""
        return op(self.chunk_size, noop_flag_buffer, tensor_lists, *args)


multi_tensor_applier = MultiTensorApply(2048 * 32)
