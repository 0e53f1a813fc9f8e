"""How far from float32 the optimizers of torch's database may train, and which are known to differ more, with why.

A distance is a part of what six steps without amp move the weights. An entry that is not needed fails the test.
"""

BOUNDS = {"O1": 0.003, "O2": 0.003, "O4": 0.02, "O5": 0.02}

WIDER_BOUNDS = {
    # It orthogonalizes each gradient in bfloat16, without amp too.
    "Muon": {"O1": 0.05, "O2": 0.05, "O4": 0.08, "O5": 0.08},
    # It steps by the sign of each gradient and by whether it has changed: rounding decides for those near zero.
    "Rprop": {"O1": 0.05, "O2": 0.05, "O4": 0.25, "O5": 0.25},
    # Its twenty iterations per step divide differences of gradients that are as small as what half rounds.
    "LBFGS": {"O1": 1.0, "O2": 1.0, "O4": 4.0, "O5": 4.0},
}
