"""``amp.master_params``: the params that an optimizer steps on, with true gradients, for clipping."""

from .optimizer_record import record_of


def prepared_params(optimizer):
    """Yield the params in ``param_groups``, with the gradients that a step would use."""
    record = record_of(optimizer)
    if record is not None:
        record.gradients.prepare_clipping()
    for group in optimizer.param_groups:
        yield from group["params"]
