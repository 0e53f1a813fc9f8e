"""All combinations of the memory savers on digits, as each rank runs them; importable by spawned processes."""

import collections
import os
import sys

import torch
from helpers import half_kernels, pairing

import ampcompat
from ampcompat import amp
from ampcompat.apex import install
from ampcompat.apex.parallel import DistributedDataParallel as ApexStyle

EXAMPLES = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "examples")
STEPS, DIGITS, COPIES = 4, 12, 4
WRAPPERS = {"alone": None, "torch": torch.nn.parallel.DistributedDataParallel, "apex": ApexStyle}
LEVELS = ("O0", "O1", "O2", "O3", "O4", "O5")
PLAIN = ("O0", 1, False, "alone")


def combinations():
    """Return all savers together, and pairs: (level, iterations per step, whether checkpointed, wrapper's name)."""
    together = [(level, 2, True, wrapper) for level in LEVELS for wrapper in ("torch", "apex")]
    paired = pairing.pairs(LEVELS, (1, 2), (False, True), tuple(WRAPPERS))
    return list(collections.OrderedDict.fromkeys([PLAIN] + together + paired))


def import_examples():
    """Return the modules ``digits_cnn`` and ``memory_savers``, as ``run`` would import them."""
    install.install()
    sys.path.insert(0, EXAMPLES)
    import digits_cnn
    import memory_savers

    return digits_cnn, memory_savers


def batches_of(digits_cnn):
    """Return batches in which every quarter holds the same digits, for equal batch norm input in every part."""
    images, labels = digits_cnn.load_data(torch.device("cpu"))[:2]
    picked = [slice(step % 2 * DIGITS, (step % 2 + 1) * DIGITS) for step in range(STEPS)]
    return [(images[each].repeat(COPIES, 1, 1, 1), labels[each].repeat(COPIES)) for each in picked]


def all_combinations(rank):
    """Return {combination: the loss of every step}, of this rank's parts; ranks share out what each can do alone."""
    digits_cnn, savers = import_examples()
    batches, losses = batches_of(digits_cnn), {}
    for level, accumulate, checkpointed, wrapper in combinations():
        if wrapper == "alone" and rank != LEVELS.index(level) % 2:
            continue
        os.environ.update(half_kernels.stand_in(level))
        torch.manual_seed(0)
        net = (savers.CheckpointedNet if checkpointed else digits_cnn.Net)()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
        options = {"init_scale": 2.0**8} if level in ("O1", "O2") else {}
        try:
            amp.initialize(net, optimizer, opt_level=level, verbosity=0, **options)
            wrap = WRAPPERS[wrapper]
            model, world = (net, 1) if wrap is None else (wrap(net), 2)
            mine = savers.divided(batches, world)[rank % world :: world]
            parts = savers.divided(mine, accumulate)
            losses[level, accumulate, checkpointed, wrapper] = savers.train(model, optimizer, parts, accumulate)
        finally:
            ampcompat.reset()
    return losses
