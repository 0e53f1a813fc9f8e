"""The callbacks of a session."""


class Observer:
    """Base class of observers: their methods are called while a session trains. Each does nothing by default.

    An observer must not change models, optimizers or scalers. Reading a tensor waits for its device. An exception
    raised by a method propagates to the training loop, at a point where params, masters and loss scales are consistent.
    Use this to stop a run.
    """

    def initialized(self, session, models, optimizers):
        """Called after ``amp.initialize`` has succeeded.

        Args:
            session: the ``Session``.
            models, optimizers: lists of those that are new in the session.
        """

    def before_backward(self, backward):
        """Called when a ``scale_loss`` block is entered.

        Args:
            backward: the ``BackwardPass`` with its ``loss`` (unscaled, with its graph), ``loss_id``, ``scaler``,
                ``scale`` and ``records``.
        """

    def after_backward(self, backward):
        """Called when a ``scale_loss`` block was left without an exception.

        Args:
            backward: the ``BackwardPass``. Its gradients are unscaled, unless ``backward.delay_unscale``.
                ``backward.overflow_check`` is the ``OverflowCheck`` of these gradients, whose result is still on the
                device; None if the check is delayed.
        """

    def step_skipped(self, session, loss_id, scaler):
        """Called when a step is skipped because gradients overflowed.

        Fused optimizers skip steps on the device, so for them the call may come some steps later.

        Args:
            session: the ``Session``.
            loss_id: the index of the loss whose gradients overflowed.
            scaler: its ``LossScaler``, after the update of the scale.
        """

    def before_step(self, record):
        """Called before an optimizer's ``step()``.

        Args:
            record: its ``OptimizerRecord``.
        """

    def after_step(self, record):
        """Called after an optimizer's ``step()``, skipped or not.

        Args:
            record: its ``OptimizerRecord``; ``record.skips.was_last_skipped()`` waits for the device and returns
                whether the step was skipped.
        """

    def closed(self, session):
        """Called when a session is closed, before models and optimizers are restored."""
