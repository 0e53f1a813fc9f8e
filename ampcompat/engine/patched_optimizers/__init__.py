"""What ``amp.initialize`` does to optimizers: master weights, the replaced ``step``, unscaled gradients."""
