"""Train a small GPT sharded by ``fully_shard``; it can be killed at any time and resumes automatically.

    export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
    torchrun --standalone --nproc-per-node 2 --max-restarts 3 -m ampcompat run --opt-level O2 \\
        examples/sharded.py --checkpoint /tmp/run

Written like a script for NVIDIA Apex: it does not use ampcompat. When a process dies, torchrun restarts all of them,
    and they continue from the last checkpoint, bit for bit. A different number of processes can read the same
    checkpoint. Without the variable, restarted processes may read addresses of dead ones from torchrun's store and wait
    for them (torch 2.13). The network and its text are those of ``char_transformer.py``.
"""

import argparse
import os
import re
import shutil
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from apex import amp
from char_transformer import ALPHABET, CharTransformer, load_text, loss_of
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
from torch.distributed.fsdp import fully_shard


def contents(model, optimizer, step):
    """Return the contents of a checkpoint. Shards are DTensors, so any number of processes can read it."""
    return {
        "step": step,
        "model": model.state_dict(),
        "optimizer": get_optimizer_state_dict(model, optimizer),
        "amp": amp.state_dict(),
    }


def save(folder, model, optimizer, step):
    """Write the checkpoint ``folder/step-N``, which gets this name only when it is complete; remove earlier ones."""
    unfinished = os.path.join(folder, "unfinished")
    if dist.get_rank() == 0:
        shutil.rmtree(unfinished, ignore_errors=True)  # of a save that was killed
    dist.barrier()
    dcp.save(contents(model, optimizer, step), checkpoint_id=unfinished)  # returns when all processes have written
    if dist.get_rank() == 0:
        earlier = saved_steps(folder)
        os.rename(unfinished, os.path.join(folder, f"step-{step}"))
        for each in earlier:
            shutil.rmtree(os.path.join(folder, f"step-{each}"))
    dist.barrier()


def load(folder, model, optimizer):
    """Restore the newest checkpoint and return its step; 0 without one."""
    steps = saved_steps(folder)
    if not steps:
        return 0
    state = contents(model, optimizer, 0)
    dcp.load(state, checkpoint_id=os.path.join(folder, f"step-{max(steps)}"))
    model.load_state_dict(state["model"])
    set_optimizer_state_dict(model, optimizer, state["optimizer"])
    amp.load_state_dict(state["amp"])
    return state["step"]


def saved_steps(folder):
    """Return the steps of the checkpoints in a folder."""
    names = os.listdir(folder) if os.path.isdir(folder) else []
    return [int(name[len("step-") :]) for name in names if re.match(r"step-\d+$", name)]


def batch_of(letters, step, args):
    """Return this process's part of a step's windows, which depend only on the step."""
    generator = torch.Generator().manual_seed(step)
    starts = torch.randint(len(letters) - args.context, (args.batch_size,), generator=generator).tolist()
    mine = starts[dist.get_rank() :: dist.get_world_size()]
    return torch.stack([letters[start : start + args.context + 1] for start in mine])


def parse_args():
    parser = argparse.ArgumentParser(description="Train a sharded GPT with checkpoints that a killed run goes on from.")
    parser.add_argument("--checkpoint", required=True, help="folder to save to and to resume from")
    parser.add_argument("--opt-level", default="O2")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--every", type=int, default=10, help="steps between two checkpoints")
    parser.add_argument("--batch-size", type=int, default=12, help="of all processes together")
    parser.add_argument("--context", type=int, default=32)
    parser.add_argument("--width", type=int, default=48)
    parser.add_argument("--layers", type=int, default=2)
    return parser.parse_args()


def train(args):
    """Train from the last checkpoint to the last step."""
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    letters, _ = load_text(device)
    torch.manual_seed(0)
    model = CharTransformer(len(ALPHABET), args.context, args.width, 4, args.layers).to(device)
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    model, optimizer = amp.initialize(model, optimizer, opt_level=args.opt_level, verbosity=0)
    done = load(args.checkpoint, model, optimizer)
    rank = dist.get_rank()
    print(f"rank {rank} is process {os.getpid()}, after step {done}", flush=True)
    for step in range(done + 1, args.steps + 1):
        loss = loss_of(model, batch_of(letters, step, args))
        optimizer.zero_grad()
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        torch.nn.utils.clip_grad_norm_(amp.master_params(optimizer), 1.0)
        optimizer.step()
        if rank == 0:
            print(f"step {step} loss {loss.item():.6f}", flush=True)
        if step % args.every == 0 or step == args.steps:
            save(args.checkpoint, model, optimizer, step)


def main():
    args = parse_args()
    # Processes that wait for one that hangs fail after this time and are restarted.
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo", timeout=timedelta(seconds=60))
    try:
        train(args)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
