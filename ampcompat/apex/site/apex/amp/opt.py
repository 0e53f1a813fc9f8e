"""``OptimWrapper``, the API from before 2019: raises an error that shows the current API."""


class OptimWrapper:
    """The result of ``handle.wrap_optimizer`` before 2019; using it raises an error that shows the replacement."""

    def __init__(self, optimizer=None, amp_handle=None, num_loss=1):
        raise RuntimeError(
            "OptimWrapper is the API from before 2019. Use `model, optimizer = amp.initialize(model, optimizer)` and "
            "`with amp.scale_loss(loss, optimizer) as scaled_loss: scaled_loss.backward()`."
        )
