"""O5 with ``store_param_remainders=True`` against O5: the same weights bit for bit, and the time of a step.

    python benchmarks/stored_masters.py [--steps 1000] [--width 1024] [--layers 8] [--rounds 11] [--device cpu]

The first table trains a small network with both, clips every other step, halves the learning rate every hundred, and
skips every fiftieth step because of an overflow; it counts the bits of weights, masters and state that differ. The
second times a step of a tower of linear layers; ratios are medians of interleaved runs.
"""

import statistics

import bench
import torch

import ampcompat
from ampcompat import amp
from ampcompat.apex import optimizers as fused
from ampcompat.engine.masters import remainder_chunk

OPTIMIZERS = {
    "SGD, momentum": lambda params: torch.optim.SGD(params, lr=0.01, momentum=0.9),
    "Adam": lambda params: torch.optim.Adam(params, lr=0.001),
    "AdamW": lambda params: torch.optim.AdamW(params, lr=0.001),
    "RMSprop": lambda params: torch.optim.RMSprop(params, lr=0.001),
    "Adagrad": lambda params: torch.optim.Adagrad(params, lr=0.01),
    "NAdam": lambda params: torch.optim.NAdam(params, lr=0.001),
    "FusedAdam": lambda params: fused.FusedAdam(params, lr=0.001),
}
REFUSED = {
    "FusedLAMB": lambda params: fused.FusedLAMB(params, lr=0.001),
    "LBFGS": lambda params: torch.optim.LBFGS(params, lr=0.001),
}
TIMED = {
    "AdamW": lambda params: torch.optim.AdamW(params, lr=0.001),
    "AdamW, fused": lambda params: torch.optim.AdamW(params, lr=0.001, fused=True),
    "SGD, momentum": lambda params: torch.optim.SGD(params, lr=0.001, momentum=0.9),
}


def network():
    torch.manual_seed(0)
    layers = [torch.nn.Linear(32, 64), torch.nn.Tanh(), torch.nn.Linear(64, 64), torch.nn.Linear(64, 8)]
    return torch.nn.Sequential(*layers)


def trained(make_optimizer, steps, device, **options):
    """Return weights, masters and state after training."""
    with ampcompat.session():
        model = network().to(device)
        optimizer = make_optimizer(model.parameters())
        amp.initialize(model, optimizer, opt_level="O5", verbosity=0, skip_static_overflow=True, **options)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 100, 0.5)
        generator = torch.Generator().manual_seed(1)
        for step in range(steps):
            x = torch.randn(16, 32, generator=generator).to(device)
            loss = (model(x).float() - x[:, :8]).square().mean()
            with amp.scale_loss(loss * (float("inf") if step % 50 == 49 else 1.0), optimizer) as scaled_loss:
                scaled_loss.backward()
            if step % 2:
                torch.nn.utils.clip_grad_norm_(amp.master_params(optimizer), 0.1)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        masters = list(amp.master_params(optimizer))
        states = [optimizer.state[master] for master in masters]
        found = list(model.parameters()) + masters
        found += [value for state in states for value in state.values() if isinstance(value, torch.Tensor)]
        return [each.detach().float().clone() for each in found]


def bitwise(steps, device):
    """Print for each optimizer how many numbers differ."""
    bench.heading("optimizer", "steps", "numbers", "differ")
    for name, make in OPTIMIZERS.items():
        one, other = (trained(make, steps, device, store_param_remainders=stored) for stored in (True, False))
        differing = sum(int((a.view(torch.int32) != b.view(torch.int32)).sum()) for a, b in zip(one, other))
        bench.row(name, steps, f"{sum(each.numel() for each in one):,}", f"{differing:,}")
    for name, make in REFUSED.items():
        try:
            trained(make, 1, device, store_param_remainders=True)
            bench.row(name, "taken")
        except ampcompat.errors.AmpError as error:
            bench.row(name, f"refused: {error}")


def stepper(make_optimizer, layers, width, device, **options):
    """Return a function that steps once on gradients as a backward pass leaves them, and returns the seconds."""
    model = torch.nn.Sequential(*[torch.nn.Linear(width, width) for _ in range(layers)]).to(device)
    optimizer = make_optimizer(model.parameters())
    amp.initialize(model, optimizer, opt_level="O5", verbosity=0, **options)
    x = torch.randn(4, width, device=device)

    def step():
        with amp.scale_loss(model(x).float().square().mean(), optimizer) as scaled_loss:
            scaled_loss.backward()
        seconds = bench.seconds(optimizer.step, device)
        optimizer.zero_grad()
        return seconds

    return step


def times(layers, width, device, rounds):
    """Print the time of a step with stored masters over that of O5."""
    print(f"\n{layers} linear layers of {width} x {width}; a step in ms, medians of {rounds}")
    bench.heading("optimizer", "O5, ms", "stored, ms", "ratio")
    for name, make in TIMED.items():
        with ampcompat.session():
            steps = {each: stepper(make, layers, width, device, store_param_remainders=each) for each in (False, True)}
            found = bench.interleaved(steps, rounds, warm_up=2)
        plain, stored = (statistics.median(each) * 1e3 for each in found.values())
        bench.row(name, f"{plain:.2f}", f"{stored:.2f}", f"{stored / plain:.2f}")


def main():
    stated = bench.options(__doc__, steps=1000, layers=8, width=1024, rounds=11, device="cpu")
    print("torch {}, {}, CPU: {}".format(torch.__version__, stated.device, " ".join(bench.cpu_flags())))
    remainder_chunk.FEWEST = 2048  # several chunks in a small network
    bitwise(stated.steps, stated.device)
    times(stated.layers, stated.width, stated.device, stated.rounds)


if __name__ == "__main__":
    main()
