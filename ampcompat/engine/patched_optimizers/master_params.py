"""``amp.master_params``: the params that an optimizer steps on, with true gradients, for clipping."""


def prepared_params(optimizer):
    """Yield the params in ``param_groups``, with the gradients that a step would use."""
    stash = getattr(optimizer, "_amp_stash", None)
    if stash is not None:
        stash.record.gradients.prepare_clipping()
    for group in optimizer.param_groups:
        yield from group["params"]
