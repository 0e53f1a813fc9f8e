"""``AmpStash``: a view of an ``OptimizerRecord`` under the names by which clients of Apex read ``_amp_stash``.

"fp16" and "fp32" are Apex's names, not dtypes: at O5 the half params are bfloat16.
"""

#: The attribute of an optimizer that holds its ``AmpStash``. Clients look for it to see if amp knows the optimizer.
STASH = "_amp_stash"


class AmpStash:
    """The names; each list is built at access.

    Args:
        record: the ``OptimizerRecord``.
    """

    #: Always True: master weights are made in ``initialize``.
    lazy_init_called = True

    def __init__(self, record):
        self.record = record
        self._is_step_replaced = False  # by a client
        self._stashed_grads = ()

    @property
    def already_patched(self):
        """Whether the next step will be skipped; a client with a ``scale_loss`` of its own sets it."""
        return self._is_step_replaced or self.record.skips.is_next_skipped()

    @already_patched.setter
    def already_patched(self, value):
        self._is_step_replaced = bool(value)

    @property
    def params_have_scaled_gradients(self):
        """Whether a pass with ``delay_unscale`` has not been unscaled yet; a client with a loop of its own sets it."""
        return self.record.gradients.are_delayed()

    @params_have_scaled_gradients.setter
    def params_have_scaled_gradients(self, value):
        gradients = self.record.gradients
        if bool(value) is not gradients.are_delayed():
            gradients.leave_scaled(self.record.configuration.scalers[0].loss_scale() if value else 1.0)

    @property
    def all_fp16_params(self):
        """The half params of the model."""
        return [pair.model for pair in self.record.pairs()]

    @property
    def all_fp32_from_fp16_params(self):
        """Their masters, in the same order."""
        return [pair.master for pair in self.record.pairs()]

    @property
    def all_fp32_from_fp32_params(self):
        """The params that are their own masters."""
        return self.record.unpaired_params()

    @property
    def all_fp32_from_fp32_grad_stash(self):
        """For each of these params None, or what a client's ``_prepare_amp_backward`` has put there."""
        count = len(self.record.unpaired_params())
        if len(self._stashed_grads) != count:
            self._stashed_grads = [None] * count
        return self._stashed_grads

    @property
    def fp16_groups(self):
        """The half params of the model, a list per param group."""
        return [[pair.model for pair in group] for group in self.record.masters.pairs_by_group()]

    @property
    def fp32_from_fp16_groups(self):
        """Their masters, a list per param group."""
        return [[pair.master for pair in group] for group in self.record.masters.pairs_by_group()]
