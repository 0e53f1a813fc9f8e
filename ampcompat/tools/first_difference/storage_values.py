"""The values of a step in one storage, until they are overwritten."""

from torch.multiprocessing.reductions import StorageWeakRef


class StorageValues:
    """One storage.

    Attributes:
        known: ``{layout of a tensor: index of its value}``.
        is_made: whether it was created or written to in the step.

    Args:
        storage: the storage, or None. It is referenced weakly; its address is not reused as long as this object exists.
    """

    def __init__(self, storage):
        self._reference = None if storage is None else StorageWeakRef(storage)
        self.known, self.is_made = {}, False

    def write(self, tensor):
        """Forget the values that share memory with a tensor that is written to."""
        written, self.is_made = layout_of(tensor), True
        self.known = {layout: index for layout, index in self.known.items() if not overlap(layout, written)}


def layout_of(tensor):
    """Return the layout of a strided tensor in its storage: dtype, offset, shape and strides."""
    try:
        return tensor.dtype, tensor.storage_offset(), tuple(tensor.shape), tuple(tensor.stride())
    except (NotImplementedError, RuntimeError):  # sparse
        return tensor.dtype, 0, tuple(tensor.shape), ()


def overlap(first, second):
    """Return whether two layouts of one storage may share memory; parts of rows, such as those of ``split``, do not."""
    if first[0] is not second[0]:
        return True
    (_, start, shape, strides), (_, other_start, other_shape, other_strides) = first, second
    extent, other_extent = _extent(shape, strides), _extent(other_shape, other_strides)
    if start + extent <= other_start or other_start + other_extent <= start:
        return False
    if strides != other_strides or not strides or max(strides) == 0:
        return True
    row = max(strides)
    widths = [_extent(sizes, strides, row) for sizes in (shape, other_shape)]
    places = start % row, other_start % row
    is_within_rows = all(place + width <= row for place, width in zip(places, widths))
    return not is_within_rows or (places[0] + widths[0] > places[1] and places[1] + widths[1] > places[0])


def _extent(shape, strides, row=None):
    """Return the number of elements from the first to the last one, inclusive, without steps of ``row``."""
    steps = [(size - 1) * stride for size, stride in zip(shape, strides) if stride != row]
    return sum(steps) + 1 if 0 not in shape else 0
