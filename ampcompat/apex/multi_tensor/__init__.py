"""Updates of optimizers over lists of tensors, and Apex's own functions for such lists."""
