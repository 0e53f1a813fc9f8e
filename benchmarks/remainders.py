"""Restore every float32 value from its bfloat16 weight and a remainder of 16 bits, and count those that differ.

    python benchmarks/remainders.py [--all]

By default every 61st bit pattern; --all tries all 2**32, in minutes. NaN only has to stay NaN.
"""

import time

import bench
import torch

from ampcompat.engine.masters import remainder_bits

BLOCK = 1 << 22


def count(first, step):
    """Return (finite values, those not restored bit for bit, ties that 16 bits cannot tell apart, NaN lost)."""
    last = min(first + BLOCK * step, 2**31)
    values = torch.arange(first, last, step, dtype=torch.int64).to(torch.int32).view(torch.float32)
    weights = values.to(torch.bfloat16).view(torch.int16)
    remainders, ties = remainder_bits.split(values, weights)
    without_list = weights.to(torch.int32) * 65536 + remainders != values.view(torch.int32)
    without_list &= ~values.isnan()
    found = remainder_bits.join(weights, remainders, ties)
    differs = found.view(torch.int32) != values.view(torch.int32)
    is_nan = values.isnan()
    lost = int((is_nan & ~found.isnan()).sum())
    return int(values.isfinite().sum()), int((differs & ~is_nan).sum()), int(without_list.sum()), lost


def main():
    step = 1 if bench.options(__doc__, all=False).all else 61
    began = time.perf_counter()
    totals = [0, 0, 0, 0]
    for first in range(-(2**31), 2**31, BLOCK * step):
        totals = [total + more for total, more in zip(totals, count(first, step))]
    print(f"torch {torch.__version__}, every {step}. bit pattern, {time.perf_counter() - began:.0f} s")
    print(f"finite values tried                {totals[0]:>14,}")
    print(f"not restored bit for bit           {totals[1]:>14,}")
    print(f"would differ with 16 bits alone    {totals[2]:>14,}")
    print(f"NaN that became a number           {totals[3]:>14,}")


if __name__ == "__main__":
    main()
