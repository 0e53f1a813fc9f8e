"""The record of one training step, operation by operation: plain data, written by one process and read by another."""

from typing import List, NamedTuple, Optional, Tuple

import torch

from ...trace.places import OpPlace

#: Names of torch operations whose public function has a different name, after a leading "_", "native_" and a trailing
#: "_backward" have been dropped.
NAMES = {
    "softmax_backward_data": "softmax",
    "log_softmax_backward_data": "log_softmax",
    "convolution": "conv",
    "convolution_overrideable": "conv",
    "batch_norm_legit": "batch_norm",
    "batch_norm_legit_functional": "batch_norm",
    "cudnn_batch_norm": "batch_norm",
    "cudnn_convolution": "conv",
    "threshold": "relu",
    "fused_rms_norm": "rms_norm",
    "nll_loss_forward": "nll_loss",
    "nll_loss2d_forward": "nll_loss",
    "embedding_dense": "embedding",
}

#: Kinds of operations: ``copy`` returns the values of its input (conversions, views), ``random`` draws random numbers,
#: and ``end`` is not an operation: its inputs are a result of the step, such as a loss.
COMPUTE, COPY, RANDOM, END = "compute", "copy", "random", "end"

#: Kinds of values: the result of a recorded operation; from before the step; created in the step but not recorded.
RESULT, OUTSIDE, HIDDEN = "result", "outside", "hidden"


class Ref(NamedTuple):
    """Replaces a tensor among the arguments of an operation: the index of its value."""

    index: int


class StepValue(NamedTuple):
    """A tensor at one time. ``param``: ``(model, name)`` of a param or buffer; ``key``: in the ``TensorStore``."""

    index: int
    kind: str
    dtype: torch.dtype
    shape: Tuple[int, ...]
    device: str
    param: Optional[Tuple[int, str]]
    op: Optional[int]
    key: Optional[Tuple[int, int]]


class StepOp(NamedTuple):
    """One operation of torch, below autograd.

    ``name``: in torch.ops, such as "aten.addmm.default". ``function``: the public function that called it, or the
    autograd function, "" if unknown. ``line``: (file, line) of the script; in a backward pass those of the forward
    operation. ``args``, ``kwargs``: with a ``Ref`` in place of each tensor. ``inputs``, ``outputs``: values.
    """

    index: int
    name: str
    kind: str
    direction: str
    place: OpPlace
    module_call: int
    function: str
    line: Tuple[str, int]
    args: tuple
    kwargs: dict
    inputs: Tuple[int, ...]
    outputs: Tuple[int, ...]

    @property
    def base(self):
        """The operation's name for the alignment, the same for in-place forms and overloads."""
        return base_name(self.name)

    @property
    def public_name(self):
        """The display name: of the function called, otherwise of the operation."""
        return self.function or readable(self.base)


class StepRecord(NamedTuple):
    """One step.

    ``losses``: the values that backward passes began with. ``gradients``: keys of the params' gradients. ``left_out``:
    the number of tensors beyond the limit of the temporary folder.
    """

    ops: List[StepOp]
    values: List[StepValue]
    losses: List[int]
    gradients: List[Optional[Tuple[int, int]]]
    left_out: int


def base_name(name):
    """Return the name of an operation without its library, its overload and the "_" of an in-place form."""
    packet = name.split(".")[1] if name.count(".") >= 1 else name
    return packet[:-1] if packet.endswith("_") and not packet.endswith("__") else packet


def readable(base):
    """Return the public name of an operation, as far as it follows from torch's internal one."""
    name = base.lstrip("_")
    name = name[len("native_") :] if name.startswith("native_") else name
    name = NAMES.get(name, name)
    name = name[: -len("_backward")] if name.endswith("_backward") else name
    return NAMES.get(name, name)
