"""Finds the first operation of a step at a level that differs from float32 by more than its dtype explains.

``observed_step`` records one step in each of two processes, with the same weights, random states and loss scale. In the
second process, ``compare_steps`` goes through the step: ``alignment`` pairs operations by module, call and name, and by
the origin of their inputs. With x the inputs of the float32 run, d the dtypes of the level, and q() rounding to d:

    exact       f(x) in float32, with the level's kernel and arguments
    ideal       f(q(x)) in float32
    own         f(q(x)) in d
    introduced  rms(own - expected) / (eps(d) rms(expected)), where expected is the float32 run's result
    inherited   rms(recorded - own) in the same unit, where recorded is the level's result in its own step

For sums and products, rms(f(|x|)) is used if it is larger than rms(expected): the bound of their rounding error is
eps(d) times the sum of absolute values (Higham, Accuracy and Stability of Numerical Algorithms, 2002, section 3.1).

Operations without a counterpart are computed from the results of paired ones (``shadows``), in float32 and in d, so
that their total error appears at the paired operation that uses the result. ``docs/ab.md`` has the limits.
"""
