"""How fast the CPU computes in half: tried, since no name of torch's tells.

Owns: the products that are timed, and what counts as fast.
Must not touch: decisions; autocast and the number of threads stay as they were.
The surprise: a dtype whose kernels are missing is simply not fast.
"""

import functools
import time
from contextlib import nullcontext

import torch

# As they are before any session replaces them: the probe is of torch, not of us.
_mm, _conv2d, _conv_transpose2d = torch.mm, torch.nn.functional.conv2d, torch.nn.functional.conv_transpose2d


@functools.lru_cache(maxsize=None)
def fast_on_cpu(dtype):
    """Return whether products in this dtype take less than 3 times as long on the CPU as in float32: tried, once.

    Without units for a half dtype they take 5 to 160 times as long, with units no longer. One thread tries it: on a
    busy machine threads that wait for each other make everything equally slow.
    """
    if dtype not in (torch.float16, torch.bfloat16):
        return True
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with _no_autocast_on_cpu(), torch.no_grad():
            _transposed_convolution(dtype)()  # torch 1.12 has the other kernels in bfloat16, and not this one
            return all(_time_ratio(product, dtype) < 3.0 for product in (_matrix_product, _convolution))
    except (RuntimeError, NotImplementedError):  # torch < 1.10 or so has no such kernels at all
        return False
    finally:
        torch.set_num_threads(threads)


def _matrix_product(dtype):
    matrix = torch.ones(96, 96, dtype=torch.float32, device="cpu").to(dtype)
    return lambda: _mm(matrix, matrix)


def _convolution(dtype):
    image = torch.ones(2, 16, 12, 12, dtype=torch.float32, device="cpu").to(dtype)
    weight = torch.ones(16, 16, 3, 3, dtype=torch.float32, device="cpu").to(dtype)
    return lambda: _conv2d(image, weight)


def _transposed_convolution(dtype):
    image = torch.ones(1, 3, 4, 4, dtype=torch.float32, device="cpu").to(dtype)
    weight = torch.ones(3, 2, 2, 2, dtype=torch.float32, device="cpu").to(dtype)
    return lambda: _conv_transpose2d(image, weight)


def _time_ratio(product, dtype):
    """Return how many times as long a product takes in ``dtype`` as in float32: the best of a few tries of each."""
    best = [float("inf"), float("inf")]
    runs = product(dtype), product(torch.float32)
    for _ in range(10):
        for index, run in enumerate(runs):
            start = time.perf_counter()
            run()
            best[index] = min(best[index], time.perf_counter() - start)
    return best[0] / max(best[1], 1e-9)


def _no_autocast_on_cpu():
    if not hasattr(torch, "autocast"):
        return nullcontext()
    return torch.autocast("cpu", dtype=torch.bfloat16, enabled=False)
