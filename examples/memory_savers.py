"""Ways to save memory, combined: half precision, accumulation, checkpointing, several processes; on handwritten digits.

    ampcompat run examples/memory_savers.py --opt-level O2 --accumulate 4 --checkpoint
    torchrun --nproc_per_node 2 -m ampcompat run examples/memory_savers.py --accumulate 2 --checkpoint

The batch size is that of an optimizer step, however it is divided: with more iterations per step or more processes, the
parts in memory are smaller and the training is the same. (Only batch norm depends on the parts.)
"""

import argparse
import contextlib
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from apex import amp
from digits_cnn import Net, accuracy, load_data
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint


class CheckpointedNet(Net):
    """The same network, with two blocks that keep only their inputs and recompute the rest in the backward pass."""

    def block1(self, x):
        return F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 2)

    def block2(self, x):
        return F.max_pool2d(F.relu(self.bn2(self.conv2(x))), 2)

    def forward(self, x):
        x = checkpoint(self.block1, x, use_reentrant=False)  # the other form gives the first layer no gradient
        x = checkpoint(self.block2, x, use_reentrant=False)
        return self.fc(x.view(x.size(0), -1))


def divided(batches, parts):
    """Return batches, each divided into this number of parts, as one flat list."""
    return [part for batch in batches for part in zip(*(tensor.chunk(parts) for tensor in batch))]


def train(model, optimizer, parts, accumulate):
    """Train on ``accumulate`` parts per step; return the mean loss of every step."""
    losses, total = [], 0.0
    for index, (images, labels) in enumerate(parts):
        size = min(accumulate, len(parts) - index // accumulate * accumulate)  # the last step may have fewer parts
        is_last = index % accumulate == size - 1
        with contextlib.nullcontext() if is_last or not hasattr(model, "no_sync") else model.no_sync():
            loss = F.cross_entropy(model(images), labels) / size
            with amp.scale_loss(loss, optimizer) as scaled_loss:
                scaled_loss.backward()
        total += loss.item()
        if is_last:
            optimizer.step()
            optimizer.zero_grad()
            losses.append(total)
            total = 0.0
    return losses


def parse_args():
    parser = argparse.ArgumentParser(description="Train a CNN on scikit-learn's digits with little memory.")
    parser.add_argument("--opt-level", default="O1")
    parser.add_argument("--accumulate", type=int, default=1, help="iterations per optimizer step")
    parser.add_argument("--checkpoint", action="store_true", help="recompute activations instead of keeping them")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch-size", type=int, default=64, help="digits per optimizer step")
    return parser.parse_args()


def main():
    args = parse_args()
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    if world > 1:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
        if device.type == "cuda":
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    images, labels, test_images, test_labels = load_data(device)

    net = (CheckpointedNet if args.checkpoint else Net)().to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    net, optimizer = amp.initialize(net, optimizer, opt_level=args.opt_level)
    model = DistributedDataParallel(net) if world > 1 else net
    for epoch in range(1, args.epochs + 1):
        order = torch.randperm(len(labels)).to(device)  # the same on every rank
        whole = [batch for batch in order.split(args.batch_size) if len(batch) == args.batch_size]
        batches = [(images[batch], labels[batch]) for batch in whole]
        mine = divided(batches, world)[rank::world]
        losses = train(model, optimizer, divided(mine, args.accumulate), args.accumulate)
        if rank == 0:
            print(f"epoch {epoch:2d}: loss {sum(losses) / len(losses):.4f}")
    if rank == 0:
        print(f"test accuracy: {accuracy(net, test_images, test_labels):.2f} %")
    if world > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
