"""What casting by function costs, against a hand-written loop with torch.autocast and torch.amp.GradScaler.

Prints the time of a training step and its ratio to the rival's (median of interleaved rounds), for

    mlp           4 x (Linear(8, 8) + ReLU), batch 8: only Python counts
    transformer   about 10 million params

    python benchmarks/o1_overhead.py [--levels O1 O4] [--backends native patched] [--rounds 200] [--device cpu]
"""

import argparse
import statistics
import time

import torch

import ampcompat
from ampcompat import amp
from ampcompat.tables.opt_levels import OPT_LEVELS


def mlp():
    layers = [layer for _ in range(4) for layer in (torch.nn.Linear(8, 8), torch.nn.ReLU())]
    return torch.nn.Sequential(*layers), torch.randn(8, 8)


def transformer():
    layer = torch.nn.TransformerEncoderLayer(512, 8, 1024, dropout=0.0, batch_first=True)
    return torch.nn.TransformerEncoder(layer, 5, enable_nested_tensor=False), torch.randn(2, 32, 512)


NETWORKS = {"mlp": mlp, "transformer": transformer}


def make(name, device):
    torch.manual_seed(0)
    model, batch = NETWORKS[name]()
    model = model.to(device)
    return model, batch.to(device), torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)


class Rival:
    """The loop of torch's own documentation."""

    def __init__(self, name, device, dtype):
        self.model, self.batch, self.optimizer = make(name, device)
        self.autocast = lambda: torch.autocast(device, dtype=dtype)
        self.scaler = torch.amp.GradScaler(device)

    def step(self):
        self.optimizer.zero_grad()
        with self.autocast():
            loss = self.model(self.batch).float().pow(2).mean()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def enter(self):
        """Nothing is in force between the steps."""

    leave = enter


class Ours:
    """The same loop through amp. The session is open only while a round of it runs: casts are process-wide."""

    def __init__(self, name, device, level, backend):
        self.made = make(name, device)
        self.level, self.backend = level, backend

    def enter(self):
        self.session = ampcompat.session(self.level, backend=self.backend, verbosity=0)
        self.session.__enter__()
        self.model, self.batch, self.optimizer = self.made
        amp.initialize(self.model, self.optimizer, loss_scale="dynamic")

    def leave(self):
        self.session.__exit__(None, None, None)

    def step(self):
        self.optimizer.zero_grad()
        loss = self.model(self.batch).float().pow(2).mean()
        with amp.scale_loss(loss, self.optimizer) as scaled_loss:
            scaled_loss.backward()
        self.optimizer.step()


def clock(subject, steps):
    """Return the median seconds of a step, over a few steps after a warm-up."""
    subject.enter()
    try:
        seconds = []
        for index in range(steps + 2):
            start = time.perf_counter()
            subject.step()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            if index >= 2:
                seconds.append(time.perf_counter() - start)
        return statistics.median(seconds)
    finally:
        subject.leave()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS), choices=list(NETWORKS))
    parser.add_argument("--levels", nargs="+", default=["O1", "O4"], choices=["O1", "O4"])
    parser.add_argument("--backends", nargs="+", default=["native", "patched"])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--device", default="cpu")
    stated = parser.parse_args()
    print("torch {}, {}, {} threads".format(torch.__version__, stated.device, torch.get_num_threads()))
    print("network      level backend    us ours    us rival   ratio")
    for name in stated.networks:
        steps = 200 if name == "mlp" else 5
        for level in stated.levels:
            rival = Rival(name, stated.device, OPT_LEVELS[level].dtypes.low)
            for backend in stated.backends:
                ours = Ours(name, stated.device, level, backend)
                rounds = [(clock(ours, steps), clock(rival, steps)) for _ in range(stated.rounds)]
                mine, theirs = (statistics.median(column) * 1e6 for column in zip(*rounds))
                ratio = statistics.median(a / b for a, b in rounds)
                print("{:12} {:5} {:8} {:10.0f} {:11.0f} {:7.2f}".format(name, level, backend, mine, theirs, ratio))


if __name__ == "__main__":
    main()
