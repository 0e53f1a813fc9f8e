"""What a script asks of torch for its precision: autocast, ``GradScaler``, backward passes, clipping, sums of ranks."""

import functools
import inspect
import threading

import torch

from ...observers.steps import grad_scaler_class
from ...observers.values import dense_values
from ...support.containers import floating_tensors
from ...support.script_frames import script_line
from ...support.torch_compat.features import version_of
from ...support.torch_compat.thread_context import world_size
from ...support.torch_compat.torch_names import dtype_name
from .repeated_steps import HALF

#: The functions of ``torch.nn.utils`` that clip gradients.
_CLIPS = ("clip_grad_norm_", "clip_grad_value_")

#: What the report calls sums between ranks -> functions of ``torch.distributed``, of which some torch may lack one.
_SUMS = {
    "all_reduce": ("all_reduce", "all_reduce_coalesced"),
    "reduce": ("reduce",),
    "reduce_scatter": ("reduce_scatter", "reduce_scatter_tensor", "reduce_scatter_single"),
}


class ScriptCalls:
    """Counts the calls while it ``watch``es. Each place is the ``(file, line)`` of the script.

    Args:
        before_clip: is called before gradients are clipped.
        half_params: those that optimizers have stepped with; a collection that may grow.

    Attributes:
        regions: ``{dtype: place}`` of the first enabled autocast region of each dtype.
        entered: the number of enabled autocast regions.
        scaled: the place where an enabled ``GradScaler`` first scaled a loss, or made a step, or None.
        within_autocast: ``{"backward" or "step": place}`` of calls in an enabled autocast region.
        clipped_scaled: the place of the first clipping of gradients that were still scaled, or None.
        accumulated: the place of the first backward pass that added to half gradients, or None.
    """

    def __init__(self, before_clip, half_params):
        self._before_clip, self._half_params = before_clip, half_params
        self.regions, self.within_autocast = {}, {}
        self.entered, self.scaled, self.clipped_scaled, self.accumulated = 0, None, None, None
        self._open = threading.local()  # .regions: the dtypes of the enabled regions that are open in a thread
        self._pending = False  # gradients are scaled: of a scaled loss, before ``unscale_`` and ``step``

    def watch(self, patches):
        """Replace torch's functions until ``patches`` is undone."""
        scaler = grad_scaler_class()
        patches.redirect(inspect.unwrap(torch.autocast.__enter__), self._entered)
        patches.redirect(inspect.unwrap(torch.autocast.__exit__), self._left)
        patches.redirect(torch.autograd.backward, self._backward)
        patches.wrap(scaler, "scale", self._scale)
        for name in ("unscale_", "step"):
            patches.wrap(scaler, name, self._unscaling)
        for name in _CLIPS:
            patches.redirect(inspect.unwrap(getattr(torch.nn.utils, name)), self._clip)

    def before_step(self):
        """Note whether a step is within autocast."""
        self._note_within("step")

    def _dtype_of_region(self):
        regions = getattr(self._open, "regions", None)
        return regions[-1] if regions else None

    def _note_within(self, name):
        if self._dtype_of_region() is not None:
            self.within_autocast.setdefault(name, script_line())

    def _note_scaler(self, scaler):
        if scaler.is_enabled():
            self.scaled = self.scaled or script_line()

    # -- what is called instead of torch's functions -------------------------------------------------------------------

    def _entered(self, enter, region):
        result = enter(region)
        dtype = region.fast_dtype if region._enabled else None
        if not hasattr(self._open, "regions"):
            self._open.regions = []
        self._open.regions.append(dtype)
        if dtype is not None:
            self.entered += 1
            self.regions.setdefault(dtype, script_line())
        return result

    def _left(self, leave, region, *error):
        if getattr(self._open, "regions", None):
            self._open.regions.pop()
        return leave(region, *error)

    def _backward(self, backward, *args, **kwargs):
        self._note_within("backward")
        held = []
        if self.accumulated is None:
            params = [param for param in self._half_params if param.grad is not None]
            held = [(param, param.grad, version_of(param.grad)) for param in params]
        result = backward(*args, **kwargs)
        if any(param.grad is grad and version_of(grad) != version for param, grad, version in held):
            self.accumulated = script_line()
        return result

    def _scale(self, scale, scaler, outputs):
        self._note_scaler(scaler)
        self._pending = scaler.is_enabled()
        return scale(scaler, outputs)

    def _unscaling(self, method, scaler, *args, **kwargs):
        self._note_scaler(scaler)  # torch's ShardedGradScaler has a ``scale`` of its own
        self._pending = False
        return method(scaler, *args, **kwargs)

    def _clip(self, clip, *args, **kwargs):
        self._before_clip()
        if self._pending and self.clipped_scaled is None:
            self.clipped_scaled = script_line()
        return clip(*args, **kwargs)


class RankSums:
    """In which dtypes ranks add up tensors while it ``watch``es; not of numbers, such as losses and flags.

    ``fully_shard``, FullyShardedDataParallel and communication hooks call functions of ``torch.distributed``.
    DistributedDataParallel without a hook adds up gradients in C++, in the dtypes of its params.

    Attributes:
        dtypes: ``{name of a dtype: {a key of _SUMS, or "DistributedDataParallel": None}}``.
        are_half: whether a half dtype is one of them.
    """

    def __init__(self):
        self.dtypes, self.are_half = {}, False

    def watch(self, patches):
        """Replace torch's functions until ``patches`` is undone."""
        for name, functions in _SUMS.items():
            for function in filter(None, (getattr(torch.distributed, each, None) for each in functions)):
                patches.redirect(inspect.unwrap(function), functools.partial(self._called, name))

    def _called(self, name, function, *args, **kwargs):
        if world_size() > 1:
            for tensor in floating_tensors([args, kwargs], []):
                if tensor.numel() > 1:
                    self._note(tensor.dtype, name)
        return function(*args, **kwargs)

    def look(self, modules):
        """Note what those of the modules that are a DistributedDataParallel add up in C++."""
        parallel = torch.nn.parallel.DistributedDataParallel
        for module in [each for each in modules if isinstance(each, parallel)] if world_size() > 1 else ():
            hook = module._get_ddp_logging_data().get("comm_hook")
            dtypes = {param.dtype for param in module.parameters() if param.requires_grad} if hook is None else ()
            for dtype in [torch.float16] if hook is not None and "FP16_COMPRESS" in hook else dtypes:
                self._note(dtype, "DistributedDataParallel")

    def _note(self, dtype, name):
        self.are_half = self.are_half or dtype in HALF
        self.dtypes.setdefault(dtype_name(dtype), {})[name] = None


class StepGradients:
    """The gradients at the optimizers' steps: dtypes, and what float16 makes of those that no ``GradScaler`` scaled.

    Attributes:
        dtypes: ``{param: the dtype of its last gradient}``.
    """

    def __init__(self):
        self.dtypes = {}
        self._counted = set()  # ids of the optimizers whose gradients were counted since their last step
        self._counts = []  # what ``_float16_counts`` returned

    def count(self, optimizer):
        """Count the elements of an optimizer's gradients, once before each step."""
        if id(optimizer) not in self._counted:
            self._counted.add(id(optimizer))
            values = [dense_values(param.grad) for param in _with_gradient(optimizer)]
            self._counts += [_float16_counts(each) for each in values if each is not None]

    def before_step(self, optimizer):
        """Note the dtypes of the gradients of a step."""
        self.dtypes.update((param, param.grad.dtype) for param in _with_gradient(optimizer))

    def after_step(self, optimizer):
        """Note that the next gradients are those of another step."""
        self._counted.discard(id(optimizer))

    def float16_underflow(self):
        """Return (what float16 has made of gradients, the share of elements); None if it is unknown.

        A gradient that float16 has computed and nobody has scaled is a multiple of its smallest number, 2**-24, or of
        that over the number of ranks, whose mean it may be. Layers that compute in float32 have others; if most
        elements are such, the gradients were scaled by hand.
        """
        if not self._counts:
            return None
        nonzero, computed, subnormal = torch.stack([each.cpu() for each in self._counts]).sum(0).tolist()
        if nonzero == 0:
            return "0", 1.0
        return ("subnormal", subnormal / computed) if computed > nonzero / 2 else None


def _with_gradient(optimizer):
    return [param for group in optimizer.param_groups for param in group["params"] if param.grad is not None]


def _float16_counts(values):
    """Return the number of nonzero elements, and if float16 has computed them: again, and of subnormal ones."""
    values = values.double().abs()
    nonzero, units = (values != 0).sum(), values * (2.0**24 * world_size())
    is_float16 = (units == units.round()).all()
    is_subnormal = (values > 0) & (values < torch.finfo(torch.float16).tiny)
    return torch.stack([nonzero, nonzero * is_float16, is_subnormal.sum() * is_float16])
