"""The attributes and methods of Apex's ``LossScaler`` that training loops read, call and replace.

Loops that split a model over processes replace ``update_scale`` or ``unscale``, on an object, on the class or in a
subclass, so that all ranks skip the same steps. ``scale_loss`` then calls the methods of the client.
"""

from ...support import tensor_lists
from ...support.torch_compat.thread_blocks import grad_enabled
from .overflow_check import OverflowCheck


class ApexNames:
    """Mixed into ``LossScaler``."""

    #: The kernels of this class need no extension.
    has_fused_kernel = True
    warned_no_fused_kernel = False
    warned_unscaling_non_fp32_grad = False

    @property
    def _loss_scale(self):
        return self.loss_scale()

    @_loss_scale.setter
    def _loss_scale(self, value):
        self.set_loss_scale(value)

    @property
    def _unskipped(self):
        return self.good_steps

    @_unskipped.setter
    def _unskipped(self, value):
        self.good_steps = value

    @property
    def _overflow_buf(self):
        """An int32 tensor of one element, not 0 after inf or nan. ``update_scale`` reads it. Clients may replace it."""
        return self._found.buffer

    @_overflow_buf.setter
    def _overflow_buf(self, buffer):
        self._found.buffer = buffer

    @property
    def _has_overflow(self):
        """Whether the last update found an overflow, or what a client wrote since, for the next ``update_scale``."""
        self.sync()
        return self._overflowed

    @_has_overflow.setter
    def _has_overflow(self, value):
        self.sync()
        self._overflowed = bool(value)
        self._overflow_buf.fill_(int(value))

    def overflow_state(self):
        """Return the overflow flags that ``unscale`` has recorded since the last check."""
        return self._found.state()

    def clear_overflow_state(self, earlier=None):
        """Clear the overflow flags, or set them to what ``overflow_state`` returned earlier."""
        self._found.reset(earlier)
        if earlier is None:
            self.sync()
            self._overflowed = False

    def unscale(self, model_grads, master_grads, unused_scale, models_are_masters=False, scale_override=None):
        """Write ``model_grads`` divided by the scale into ``master_grads`` (the same tensors, or float32 copies).

        Args:
            model_grads, master_grads: tensors of equal shapes, pairwise.
            scale_override: the number to divide by instead of the scale.
        """
        scale = self.loss_scale() if scale_override is None else scale_override
        pairs = [pair for pair in zip(model_grads, master_grads) if pair[0] is not None]
        with grad_enabled(False):
            for model_grad, master_grad in () if models_are_masters else pairs:
                if model_grad is not master_grad:
                    master_grad.copy_(model_grad)
            self._unscale_in_place(tensor_lists.grouped([master_grad for _, master_grad in pairs]), scale)

    def unscale_with_stashed(self, model_grads, stashed_master_grads, master_grads, scale_override=None):
        """Write ``model_grads`` divided by the scale, plus gradients of earlier passes, into ``master_grads``.

        Only ``model_grads`` are checked for overflow.

        Args:
            model_grads, stashed_master_grads, master_grads: tensors of equal shapes; ``master_grads`` may be any of the
                two others.
            scale_override: ``(scale of the model's gradients, scale of the earlier ones, scale of the result)``.
        """
        scale, earlier_scale, result_scale = scale_override or (self.loss_scale(), 1.0, 1.0)
        for model_grad, stashed, master_grad in zip(model_grads, stashed_master_grads, master_grads):
            with grad_enabled(False):
                new = model_grad.to(stashed.dtype, copy=True)
                self._unscale_in_place([[new]], scale / result_scale)
                master_grad.copy_(new.add_(stashed, alpha=result_scale / earlier_scale))

    def update_scale(self):
        """Update the scale by the flags that ``unscale`` recorded, and return whether the step should be skipped."""
        check = self.check_overflow()
        self.sync()
        return self.checks_overflow and check.overflowed()

    def is_replaced(self, name):
        """Return whether a client has put a method of its own in place of one of this class."""
        return getattr(getattr(self, name), "__func__", None) is not getattr(ApexNames, name)

    def unscale_by_client(self, groups, scale):
        """Call a client's ``unscale``, with the arguments that Apex gives it for float32 gradients."""
        grads = [grad for alike in groups for grad in alike]
        if grads:
            self.unscale(grads, grads, None, models_are_masters=True, scale_override=float(scale))

    def unscale_by_optimizer(self, post_backward):
        """Call a client's ``_post_amp_backward``, which may write to ``_overflow_buf`` before it unscales."""
        self._found.begin_check()
        post_backward(self)

    def update_by_client(self):
        """Call a client's ``update_scale`` and return its result as an ``OverflowCheck``."""
        self.sync()
        self._overflowed, skips = False, self.skips_in_a_row
        check = OverflowCheck(self, [])
        check.result = bool(self.update_scale())
        self._found.take()
        self.skips_in_a_row = skips + 1 if check.result else 0
        return check
