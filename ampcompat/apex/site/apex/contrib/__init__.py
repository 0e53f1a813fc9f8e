"""The parts of ``apex.contrib`` that are carried: clip_grad, layer_norm, optimizers, xentropy."""
