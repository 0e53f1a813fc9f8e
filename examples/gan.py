"""A small generative adversarial network (GAN) with two models, two optimizers and three losses.

    ampcompat ab --levels O0,O1,O2 examples/gan.py

Written like a script for NVIDIA Apex. The generator learns a ring of eight Gaussians in the plane. Losses 0 and 1 are
the discriminator's, for real and generated points, and loss 2 is the generator's; in successful training, none of them
falls to 0.
"""

import argparse
import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from apex import amp

NOISE = 16


def real_points(count, device):
    """Return points of the ring, (count, 2)."""
    angles = torch.randint(8, (count,), device=device).float() * (2 * math.pi / 8)
    centres = torch.stack([angles.cos(), angles.sin()], dim=1)
    return centres + 0.05 * torch.randn(count, 2, device=device)


def network(inputs, outputs, width):
    return nn.Sequential(
        nn.Linear(inputs, width),
        nn.LeakyReLU(0.2),
        nn.Linear(width, width),
        nn.LeakyReLU(0.2),
        nn.Linear(width, outputs),
    )


def parse_args():
    parser = argparse.ArgumentParser(description="Train a small GAN with apex.amp.")
    parser.add_argument("--opt-level", default="O1")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def main():
    args = parse_args()
    torch.manual_seed(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    generator = network(NOISE, 2, args.width).to(device)
    discriminator = network(2, 1, args.width).to(device)
    # An eps that is not 0 in float16: at O3, Adam's state is half.
    optimizers = [
        torch.optim.Adam(model.parameters(), lr=args.lr, betas=(0.5, 0.99), eps=1e-4)
        for model in (discriminator, generator)
    ]
    (discriminator, generator), (optimizer_d, optimizer_g) = amp.initialize(
        [discriminator, generator], optimizers, opt_level=args.opt_level, num_losses=3
    )
    ones, zeros = torch.ones(args.batch_size, 1, device=device), torch.zeros(args.batch_size, 1, device=device)
    for step in range(1, args.steps + 1):
        fake = generator(torch.randn(args.batch_size, NOISE, device=device))

        optimizer_d.zero_grad()
        loss_real = F.binary_cross_entropy_with_logits(discriminator(real_points(args.batch_size, device)), ones)
        with amp.scale_loss(loss_real, optimizer_d, loss_id=0) as scaled_loss:
            scaled_loss.backward()
        loss_fake = F.binary_cross_entropy_with_logits(discriminator(fake.detach()), zeros)
        with amp.scale_loss(loss_fake, optimizer_d, loss_id=1) as scaled_loss:
            scaled_loss.backward()
        optimizer_d.step()

        optimizer_g.zero_grad()
        loss_g = F.binary_cross_entropy_with_logits(discriminator(fake), ones)
        with amp.scale_loss(loss_g, optimizer_g, loss_id=2) as scaled_loss:
            scaled_loss.backward()
        optimizer_g.step()
        if step % 100 == 0 or step == args.steps:
            print(f"step {step:4d}: real {loss_real:.3f}, fake {loss_fake:.3f}, generator {loss_g:.3f}")


if __name__ == "__main__":
    main()
