"""What ``amp`` does in a training step: casts, loss scaling, master weights, optimizers, models and sessions."""
