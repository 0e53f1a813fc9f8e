"""``OptimWrapper``, the API of before 2019, answers with a pointer to the present one."""


class OptimWrapper:
    """What ``handle.wrap_optimizer`` returned; its only use today is to say what to call instead."""

    def __init__(self, optimizer=None, amp_handle=None, num_loss=1):
        raise RuntimeError(
            "OptimWrapper is the API of before 2019. Use `model, optimizer = amp.initialize(model, optimizer)` and "
            "`with amp.scale_loss(loss, optimizer) as scaled_loss: scaled_loss.backward()`."
        )
