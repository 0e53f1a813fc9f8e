"""Stand-in for the one function that GANs of lucidrains use, under its old and its new name."""

import torch


def filter2D(inputs, kernel, normalized=False):
    """Return each channel of ``inputs`` (n, c, h, w) convolved with ``kernel`` (1, k, k), padded by reflection."""
    kernel = kernel / kernel.abs().sum() if normalized else kernel
    channels, size = inputs.shape[1], kernel.shape[-1]
    padded = torch.nn.functional.pad(inputs, [size // 2] * 4, mode="reflect")
    weight = kernel.to(inputs).expand(channels, 1, size, size)
    return torch.nn.functional.conv2d(padded, weight, groups=channels)


filter2d = filter2D
