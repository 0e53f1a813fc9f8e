"""The part of a training loop that scripts for Apex share: the scaled backward pass, and the step."""

from ampcompat import amp


def backward(*args, **options):
    """Do a backward pass within ``amp.scale_loss(*args, **options)``."""
    with amp.scale_loss(*args, **options) as scaled_loss:
        scaled_loss.backward()


def step(loss, optimizer, **options):
    """Do a backward pass within ``amp.scale_loss``, and a step."""
    backward(loss, optimizer, **options)
    optimizer.step()
