"""Stores the tensors of a recorded step in files, up to a limit in bytes, and returns them one by one."""

import os

import torch

#: torch's own functions: a recorded run replaces the attributes of torch to observe the script's checkpoints.
save, load = torch.save, torch.load

#: The number of bytes kept in memory before they are written to a file.
CHUNK = 1 << 28


class TensorStore:
    """Tensors in a folder, with the values that they had when they were added.

    Args:
        folder: where the files are; it exists.
        limit: the total number of bytes. Tensors beyond it are left out.

    Attributes:
        left_out: the number of tensors that were left out.
    """

    def __init__(self, folder, limit):
        self._folder, self._limit = folder, limit
        self._chunks, self._pending, self._loaded = 0, [], {}
        self._bytes = self._pending_bytes = 0
        self.left_out = 0

    def put(self, tensor):
        """Copy a tensor to the CPU and keep it; return its key, or None if it is beyond the limit."""
        size = tensor.numel() * tensor.element_size()
        if self._bytes + size > self._limit:
            self.left_out += 1
            return None
        copied = tensor.detach().to("cpu", copy=True)
        self._bytes += size
        self._pending_bytes += size
        self._pending.append(copied)
        key = self._chunks, len(self._pending) - 1
        if self._pending_bytes >= CHUNK:
            self.flush()
        return key

    def flush(self):
        """Write the tensors in memory."""
        if self._pending:
            save(self._pending, self._path(self._chunks))
            self._chunks, self._pending, self._pending_bytes = self._chunks + 1, [], 0

    def get(self, key):
        """Return the tensor of a key, on the CPU, which must not be changed; None for the key None."""
        if key is None:
            return None
        chunk, place = key
        if chunk == self._chunks and self._pending:
            return self._pending[place]
        if chunk not in self._loaded:
            self._loaded = {chunk: load(self._path(chunk), map_location="cpu")}  # one at a time in memory
        return self._loaded[chunk][place]

    def _path(self, chunk):
        return os.path.join(self._folder, f"tensors-{chunk}.pt")
