"""A GAN of points on a circle, everything at the top level, as in DCGAN scripts."""

import argparse

import torch
import torch.nn as nn
import torch.optim as optim
from apex import amp

parser = argparse.ArgumentParser()
parser.add_argument("--opt_level", default="O1", help='amp opt_level, default="O1"')
parser.add_argument("--niter", type=int, default=60)
parser.add_argument("--batchSize", type=int, default=64)
parser.add_argument("--nz", type=int, default=8)
parser.add_argument("--lr", type=float, default=0.001)
parser.add_argument("--manualSeed", type=int, default=5)
opt = parser.parse_args()
torch.manual_seed(opt.manualSeed)
device = "cuda" if torch.cuda.is_available() else "cpu"


class Generator(nn.Module):
    def __init__(self, nz):
        super().__init__()
        self.main = nn.Sequential(nn.Linear(nz, 64), nn.ReLU(True), nn.Linear(64, 2))

    def forward(self, z):
        return self.main(z)


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.main = nn.Sequential(nn.Linear(2, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))

    def forward(self, x):
        return self.main(x).squeeze(1)


def real_points(count):
    angle = 6.2831853 * torch.rand(count, device=device)
    return torch.stack([angle.cos(), angle.sin()], 1)


netG = Generator(opt.nz).to(device)
netD = Discriminator().to(device)
criterion = nn.BCEWithLogitsLoss()
fixed_noise = torch.randn(16, opt.nz, device=device)
optimizerD = optim.Adam(netD.parameters(), lr=opt.lr, betas=(0.5, 0.999))
optimizerG = optim.Adam(netG.parameters(), lr=opt.lr, betas=(0.5, 0.999))

[netD, netG], [optimizerD, optimizerG] = amp.initialize(
    [netD, netG], [optimizerD, optimizerG], opt_level=opt.opt_level, num_losses=3
)

ones = torch.ones(opt.batchSize, device=device)
zeros = torch.zeros(opt.batchSize, device=device)
for i in range(opt.niter):
    ############################
    # (1) Update D network: both forward passes first
    ###########################
    real = real_points(opt.batchSize)
    noise = torch.randn(opt.batchSize, opt.nz, device=device)
    fake = netG(noise)
    errD_real = criterion(netD(real), ones)
    errD_fake = criterion(netD(fake.detach()), zeros)
    netD.zero_grad()
    with amp.scale_loss(errD_real, optimizerD, loss_id=0) as errD_real_scaled:
        errD_real_scaled.backward()
    with amp.scale_loss(errD_fake, optimizerD, loss_id=1) as errD_fake_scaled:
        errD_fake_scaled.backward()
    errD = errD_real + errD_fake
    optimizerD.step()

    ############################
    # (2) Update G network: maximize log(D(G(z)))
    ###########################
    netG.zero_grad()
    output = netD(fake)
    errG = criterion(output, ones)
    with amp.scale_loss(errG, optimizerG, loss_id=2) as errG_scaled:
        errG_scaled.backward()
    optimizerG.step()

    if (i + 1) % 20 == 0:
        with torch.no_grad():
            radius = netG(fixed_noise).float().norm(dim=1).mean().item()
        print("[%d/%d] Loss_D: %.4f Loss_G: %.4f radius %.3f" % (i + 1, opt.niter, errD.item(), errG.item(), radius))
