"""Who listens to a session: recorders of an A/B run, forensics.

Owns: ``Observer``, what a session tells and when.
Must not touch: the session, its optimizers and its scalers; an observer looks.
The surprise: a session without observers pays a loop over an empty list. What an observer reads may wait for the
device, and that is its own doing.
"""


class Observer:
    """Hears what a session does. Each method here does nothing; override what you want to hear.

    An exception that a method raises goes through to the training loop, at a point where params, masters and scales are
    consistent. That is how a run is stopped after so many steps.
    """

    def initialized(self, session, models, optimizers):
        """Hear that ``amp.initialize`` has succeeded for these models and optimizers (those that are new)."""

    def before_backward(self, backward):
        """Hear that a ``scale_loss`` block begins.

        Args:
            backward: the ``BackwardPass``: its ``loss`` (unscaled, with its graph), ``loss_id``, ``scaler``, ``scale``,
                ``adapters``.
        """

    def after_backward(self, backward):
        """Hear that the block has ended without an error; gradients are unscaled, unless ``backward.delay_unscale``.

        ``backward.verdict`` is the ``scaler.Verdict`` on them, or None where none was asked for; unread as yet.
        """

    def skipped(self, session, loss_id, scaler):
        """Hear that gradients of a loss overflowed and a step is skipped. With fused optimizers this comes late."""

    def explanation(self, loss_id):
        """Return why the last skipped step of a loss was skipped, in sentences, or None where this observer does not know."""

    def before_step(self, adapter):
        """Hear that ``step()`` of an adapter's optimizer begins."""

    def after_step(self, adapter):
        """Hear that it has ended; ``adapter.skips.was_last()`` waits for the device and says if it was skipped."""

    def closed(self, session):
        """Hear that the session is over: models are about to be float32 again."""
