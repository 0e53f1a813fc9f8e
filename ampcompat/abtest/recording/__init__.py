"""Records a run step by step: losses, loss scales, times, memory, metrics, errors of layers."""
