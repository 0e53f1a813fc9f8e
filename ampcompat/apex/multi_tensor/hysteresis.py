"""The update of a loss scale that tolerates several overflows before it is reduced, as in ``amp_C``."""

import torch

#: The smallest positive float32 number that is not subnormal.
_SMALLEST = torch.finfo(torch.float32).tiny


def update_scale_hysteresis(
    current_scale,
    growth_tracker,
    hysteresis_tracker,
    found_inf,
    growth_factor,
    backoff_factor,
    growth_interval,
    hysteresis,
):
    """Update a loss scale and its counts in place, on their device, and return the scale. Nothing is read by the host.

    Each overflow decrements the number of tolerated ones, which starts at ``hysteresis``; at 0, the scale is reduced. A
    step without overflow resets the number. After ``growth_interval`` consecutive steps without overflow, the scale
    grows, unless it would become inf. A scale that would become subnormal becomes 0, as in Apex.

    Args:
        current_scale: the scale; a float32 tensor of one element.
        growth_tracker: consecutive steps without overflow; an int32 tensor of one element.
        hysteresis_tracker: overflows that are still tolerated, including the one that reduces the scale; likewise.
        found_inf: a float32 tensor of one element, greater than 0 after an overflow.
        growth_factor, backoff_factor: the factors of the scale.
        growth_interval, hysteresis: counts.
    """
    with torch.no_grad():
        overflowed = found_inf.to(current_scale.device).reshape(current_scale.shape) > 0
        left = hysteresis_tracker - overflowed.to(hysteresis_tracker.dtype)
        hysteresis_tracker.copy_(torch.where(overflowed, left, torch.full_like(left, hysteresis)))
        good = torch.where(overflowed, torch.zeros_like(growth_tracker), growth_tracker + 1)
        grows = good == growth_interval
        growth_tracker.copy_(torch.where(grows, torch.zeros_like(good), good))
        wide = current_scale.to(torch.float64)  # one rounding, as for a product in double precision
        grown = (wide * growth_factor).to(current_scale.dtype)
        grows = grows & (grown - grown == 0)
        backed_off = (wide * backoff_factor).to(current_scale.dtype)
        backed_off = torch.where(backed_off < _SMALLEST, torch.zeros_like(backed_off), backed_off)
        unless_grown = torch.where(overflowed & (left <= 0), backed_off, current_scale)
        return current_scale.copy_(torch.where(grows, grown, unless_grown))
