"""The activations of GPT-2 with 1.5 billion params and of a model with 100 billion, predicted from shapes alone.

Rajbhandari et al. 2020 ("ZeRO", section 3.2) give these figures: at sequence length 1,024 and batch 32 the activations
of GPT-2 take about 60 GB, with checkpoints about 8 GB; those of 100 billion params about 60 GB with checkpoints. The
paper takes activations to be 12 x width x batch x length x layers
half values, which counts each value within a block once.

Here a step at O2 runs on fake tensors, with scaled_dot_product_attention. Rows:

    once       blocks with ReLU, of which autograd keeps each value once: the paper's count
    GELU       GPT-2's own blocks: autograd keeps the input of GELU and its output
    whole      with embedding, output layer and loss
    checkpoint each block is a checkpoint

    python benchmarks/estimate_gpt2.py [--rows once GELU …] [--layers 48]
"""

import sys
import time

import bench
import torch
import torch.nn.functional as F
from networks import Gpt

import ampcompat

WORDS, LENGTH, BATCH = 50257, 1024, 32


def blocks_alone(model):
    """Return a loss without the output layer."""
    return model.features(torch.randint(0, WORDS, (BATCH, LENGTH))).sum()


def whole(model):
    """Return the loss of predicting tokens."""
    tokens = torch.randint(0, WORDS, (BATCH, LENGTH))
    return F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())


def activations(loss, **options):
    """Return the predicted bytes of activations."""
    with torch.device("meta"):
        model = Gpt(**options)
    found = ampcompat.estimate(model, lambda params: torch.optim.SGD(params, lr=0.1), "O2", loss=loss)
    return found.peak_by_kind.activations


LARGE = {"width": 8192, "layers": 125, "heads": 64, "checkpointed": True}

#: name -> (what the paper says, layers -> bytes). ``Gpt``'s options come last.
ROWS = {
    "once": ("about 60 GB", lambda layers: activations(blocks_alone, layers=layers, between=F.relu)),
    "GELU": ("", lambda layers: activations(blocks_alone, layers=layers)),
    "whole": ("", lambda layers: activations(whole, layers=layers)),
    "checkpoint": ("about 8 GB", lambda layers: activations(blocks_alone, layers=layers, checkpointed=True)),
    "checkpoint, whole": ("about 8 GB", lambda layers: activations(whole, layers=layers, checkpointed=True)),
    "100 billion, checkpoint": (
        "about 60 GB",
        lambda layers: activations(blocks_alone, **LARGE),
    ),
}


def main():
    stated = bench.options(__doc__, rows=list(ROWS), layers=48, choices={"rows": ROWS})
    with torch.device("meta"):
        count = sum(param.numel() for param in Gpt(layers=stated.layers).parameters())
    print(f"torch {torch.__version__}, {count:,} params, batch {BATCH}, length {LENGTH}")
    bench.heading("row", "the paper", "predicted GB", "bytes per param", "CPU seconds")
    for name in stated.rows:
        said, predict = ROWS[name]
        found, seconds = bench.timed(predict, stated.layers, clock=time.process_time)
        share = "" if name.startswith("100") else f"{found / count:.2f}"
        bench.row(name, said, f"{found / 1e9:.2f}", share, f"{seconds:.1f}")
    if sys.platform.startswith("linux"):
        import resource

        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
        print(f"the most memory of this process: {memory:.2f} GB")


if __name__ == "__main__":
    main()
