"""Bytes per rank, and bytes sent per rank and step, of GPTs that are sharded: the table in docs/data_parallel.md.

python benchmarks/sharded.py
"""

import torch

import ampcompat

#: Billions of params: (width, layers) of a GPT with a vocabulary of 50,304.
SIZES = {1: (1792, 23), 7: (4096, 33), 70: (8192, 86)}


class Gpt(torch.nn.Module):
    """The weights of a GPT: to be made on the meta device."""

    def __init__(self, width, layers):
        super().__init__()
        sizes = [(width, 3 * width), (width, width), (width, 4 * width), (4 * width, width)]
        self.embedding = torch.nn.Embedding(50304, width)
        self.blocks = torch.nn.ModuleList(
            torch.nn.Sequential(*[torch.nn.Linear(*each) for each in sizes]) for _ in range(layers)
        )


def main():
    """Print bytes per rank and bytes sent per rank and step, as rows of a table in Markdown."""
    for billions, (width, layers) in SIZES.items():
        with torch.device("meta"):
            model = Gpt(width, layers)
        for level in ("O1", "O2", "O5"):
            cells = []
            for ranks in (8, 64, 512, 4096):
                found = ampcompat.estimate(model, torch.optim.Adam, level, world_size=ranks, shard="full")
                cells.append(f"{found.formula / 1e9:,.2f} / {found.sent / 1e9:,.1f}")
            print("| {} | {} | {} |".format(billions, level, " | ".join(cells)))


if __name__ == "__main__":
    main()
