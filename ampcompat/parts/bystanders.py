"""Notice a backward pass that reaches the params of an optimizer that was not given to ``scale_loss``.

Owns: ``Bystander``: such an optimizer's gradients before and after the pass.
Must not touch: the gradients. They stay scaled, and mostly that is fine: a GAN's generator pass leaves gradients in the
discriminator, which its own ``zero_grad`` throws away.
The surprise: it speaks only if the optimizer steps on them, and it looks at the first few passes only.
"""

#: Passes without it that an optimizer is watched in. A loop that is wrong is wrong from the beginning.
WATCHED_PASSES = 10


class Bystander:
    """The gradients of one adapter's params, before a pass that is not its own."""

    def __init__(self, adapter):
        self._adapter = adapter
        self._before = _versions(adapter)

    def compare(self, scale):
        """Mark the adapter if the pass, whose scale this was, has changed its gradients."""
        self._adapter.watched_passes += 1
        if _versions(self._adapter) != self._before:
            self._adapter.foreign_scale = scale


def is_watched(adapter):
    """Return whether the next pass without this adapter should be looked at."""
    return adapter.watched_passes < WATCHED_PASSES


def _versions(adapter):
    grads = [param.grad for param in adapter.reached()]
    return [None if grad is None else (id(grad), grad._version) for grad in grads]
