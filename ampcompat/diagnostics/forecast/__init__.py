"""Predicts from one float32 run which opt levels will work, and which layers must stay float32.

``op_calls`` records some steps call by call, ``observers.exponents`` statistics of all values and gradients, and
``half_updates`` also does the optimizer's steps with half weights. ``level_dtypes`` determines the dtype of each value
at a level: by the op table at O1 and O4, otherwise by the weights and torch's type promotion. ``range_faults``,
``rounding_noise`` and ``prediction`` use these results. Only operations that the level computes in half can be at
fault; a norm at O1, which is float32, cannot.

With S the loss scale, x a value, g an unscaled gradient, rms the root mean square:

    overflow       |x| >= 65520 in a float16 value, if inf or nan then reaches the loss; tanh, sigmoid, clamp and
                   selections, and for -inf relu, exp and softmax, keep it from it. margin = log2(|x| / 65504).
                   S |g| > 65504 with a static scale. A dynamic scale is followed step by step, with the largest
                   gradient of each step: a fault if it skips a tenth of the steps, and some after the 25th, or
                   three tenths.
    safe scale     the largest power of two with S max|g| <= 65504, over all gradients that are half.
    underflow      a value of which, weighted by squares, most is under 2**-25 (float16 rounds it to 0), if
                   rms(x) rms(g) size >= 1 % of the loss: more the loss cannot change to first order.
                   a gradient: see lost progress. margin = log2(2**-25 / rms(x)).
    epsilon        a number that float16 makes 0 in log, sqrt, rsqrt, a denominator; called underflow where no small
                   number was added to it or limits it. In the optimizer: half weights that become inf or nan, or move
                   four times as far as float32 ones. margin = log2(2**-25 / eps).
    lost updates   kept = <moved in half, moved> / |moved|**2 of each param, over 20 steps (see ``half_updates``).
                   margin = log2(rms(w) 2**-12 / rms(update)): half a unit of the last place over the update.
    lost progress  a param's progress is -<g, update>, the decrease of the loss to first order. Of it remains the share
                   of the gradient that is not under 2**-25 / S, at the param and at each value on the way to the loss
                   (weighted by squares; by absolute values for optimizers such as Adam), times kept at O3. A fault
                   if 40 % of all progress is lost, and the loss would end 5 % higher by that.
    reduction      an overflow in a sum, norm or mean of squares; and rounding. A value rounded to half has relative
                   noise n = 2**-12 (bfloat16: 2**-9) of its rms, a difference sqrt(sum (n_i rms_i)**2) / rms, a norm
                   n rms / std, a softmax n max / max(1, gap of the two largest logits). A fault if n**2 >= 0.5 of a
                   difference, norm, softmax or loss, relative to the last recorded step or 5 % of the median.
                   margin = log2 of n over that limit. Named is the rounding that the noise comes from.
    dtype          a function would raise an error: it gets half and float32, or refuses half. margin = 0.

Layers for ``keep_fp32`` are chosen from the same recording: those with faults are kept in float32, and the dtypes and
faults are computed again, until no fault is left; then layers that are not needed are left out. With the proposed
layers, noise and lost progress are under a quarter of the limits above, and at least a fifth of the matrix products are
still half.

Not faults: single gradients that become 0, an overflow that saturates, a skipped step at the start.
"""
