"""The memory of GPT-2 with 1.5 billion params and of a model with 100 billion, predicted from shapes alone.

Rajbhandari et al. 2020 ("ZeRO", sections 3.1 and 3.2) give these figures: with Adam in mixed precision params,
gradients, masters and moments take 16 bytes per param; at sequence length 1,024 and batch 32 the activations of GPT-2
take about 60 GB, with checkpoints about 8 GB; a flat float32 buffer of all gradients takes 6 GB; the activations of 100
billion params take about 60 GB with checkpoints. The paper takes activations to be 12 x width x batch x length x layers
half values, which counts each value within a block once.

Here a step at O2 runs on fake tensors, with scaled_dot_product_attention. Rows:

    once       blocks with ReLU, of which autograd keeps each value once: the paper's count
    GELU       GPT-2's own blocks: autograd keeps the input of GELU and its output
    whole      with embedding, output layer and loss
    checkpoint each block is a checkpoint

    python benchmarks/estimate_gpt2.py [--rows states once …] [--layers 48]
"""

import argparse
import sys
import time

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import ampcompat

WORDS, LENGTH, BATCH = 50257, 1024, 32


class Block(torch.nn.Module):
    """A block of GPT-2, with the function between its two largest layers."""

    def __init__(self, width, heads, between):
        super().__init__()
        self.heads, self.between = heads, between
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(width) for _ in range(2))
        self.inside, self.outside = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        parts = self.inside(self.norms[0](x)).view(batch, length, 3, self.heads, width // self.heads)
        found = F.scaled_dot_product_attention(*parts.permute(2, 0, 3, 1, 4).unbind(0), is_causal=True)
        x = x + self.outside(found.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(self.between(self.up(self.norms[1](x))))


class Gpt(torch.nn.Module):
    """Token and position embeddings, blocks, and an output layer that is the embedding.

    Args:
        between: the function inside of each block.
        is_checkpointed: whether each block is a checkpoint.
    """

    def __init__(self, width=1600, layers=48, heads=25, between=F.gelu, is_checkpointed=False):
        super().__init__()
        self.is_checkpointed = is_checkpointed
        self.words, self.places = torch.nn.Embedding(WORDS, width), torch.nn.Embedding(LENGTH, width)
        self.blocks = torch.nn.ModuleList(Block(width, heads, between) for _ in range(layers))
        self.norm = torch.nn.LayerNorm(width)

    def features(self, tokens):
        """Return the output of the last block."""
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.is_checkpointed else block(x)
        return x

    def forward(self, tokens):
        return F.linear(self.norm(self.features(tokens)), self.words.weight)


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
    return found.activations


def states(layers):
    """Return the bytes of the formula."""
    with torch.device("meta"):
        return ampcompat.estimate(Gpt(layers=layers), torch.optim.Adam, "O2").formula


def flat_buffer(layers):
    """Return the bytes of DistributedDataParallel's buckets: a flat copy of the float32 gradients of O1."""
    with torch.device("meta"):
        model = Gpt(layers=layers)
    loss = {"loss": lambda model: model.features(torch.zeros(1, 2, dtype=torch.long)).sum()}
    alone, wrapped = (
        ampcompat.estimate(model, lambda params: torch.optim.SGD(params, lr=0.1), "O1", world_size=ranks, **loss)
        for ranks in (1, 8)
    )
    return wrapped.gradients - alone.gradients


LARGE = {"width": 8192, "layers": 125, "heads": 64}

#: name -> (what the paper says, layers -> bytes). ``Gpt``'s options come last.
ROWS = {
    "states": ("16 bytes per param", states),
    "flat": ("6 GB", flat_buffer),
    "once": ("about 60 GB", lambda layers: activations(blocks_alone, layers=layers, between=F.relu)),
    "GELU": ("", lambda layers: activations(blocks_alone, layers=layers)),
    "whole": ("", lambda layers: activations(whole, layers=layers)),
    "checkpoint": ("about 8 GB", lambda layers: activations(blocks_alone, layers=layers, is_checkpointed=True)),
    "checkpoint, whole": ("about 8 GB", lambda layers: activations(whole, layers=layers, is_checkpointed=True)),
    "100 billion, checkpoint": (
        "about 60 GB",
        lambda layers: activations(blocks_alone, **dict(LARGE, is_checkpointed=True)),
    ),
}


def most_memory():
    """Return the most bytes that this process has had in memory, or None where the system does not tell."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", nargs="+", default=list(ROWS), choices=list(ROWS))
    parser.add_argument("--layers", type=int, default=48, help="of GPT-2")
    stated = parser.parse_args(arguments)
    with torch.device("meta"):
        count = sum(param.numel() for param in Gpt(layers=stated.layers).parameters())
    print(f"torch {torch.__version__}, {count:,} params, batch {BATCH}, length {LENGTH}")
    print("| row | the paper | predicted GB | bytes per param | CPU seconds |")
    print("|---|---|---|---|---|")
    for name in stated.rows:
        said, predict = ROWS[name]
        began = time.process_time()
        found = predict(stated.layers)
        seconds = time.process_time() - began
        share = "" if name.startswith("100") else f"{found / count:.2f}"
        print(f"| {name} | {said} | {found / 1e9:.2f} | {share} | {seconds:.1f} |", flush=True)
    memory = most_memory()
    if memory is not None:
        print(f"the most memory of this process: {memory / 1e9:.2f} GB")


if __name__ == "__main__":
    main()
