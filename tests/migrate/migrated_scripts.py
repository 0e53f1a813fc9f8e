"""Four scripts in the style of public ones, each with ``run(steps)``, which returns the losses. Used as text."""

SIMPLE = '''
"""A loop at the top level of a function, as in tutorials."""
import torch
from torch import nn
from apex import amp  # mixed precision


def run(steps):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    # Allow Amp to perform casts
    model, optimizer = amp.initialize(model, optimizer, opt_level="O1", verbosity=0)
    losses = []
    for step in range(steps):
        inputs = torch.randn(16, 12)
        targets = inputs[:, :4].argmax(1)
        outputs = model(inputs)
        loss = nn.functional.cross_entropy(outputs, targets)

        optimizer.zero_grad()
        with amp.scale_loss(loss, optimizer) as scaled_loss:  # scaled, so that gradients do not vanish
            scaled_loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses
'''

ACCUMULATING = """
import argparse
import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--fp16", action="store_true")
parser.add_argument("--fp16_opt_level", type=str, default="O1")
parser.add_argument("--loss_scale", default=None)
args = parser.parse_args(ARGUMENTS)
gradient_accumulation_steps, max_grad_norm = 2, 0.5


def train(model, batches):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-4)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 4)
    if args.fp16:
        try:
            from apex import amp
        except ImportError:
            raise ImportError("Please install apex to use fp16 training.")
        model, optimizer = amp.initialize(
            model, optimizer, opt_level=args.fp16_opt_level, loss_scale=args.loss_scale, verbosity=0
        )
    losses = []
    for step, (inputs, labels) in enumerate(batches):
        model.train()
        outputs = model(inputs)
        loss = nn.functional.cross_entropy(outputs, labels)
        if gradient_accumulation_steps > 1:
            loss = loss / gradient_accumulation_steps
        if args.fp16:
            with amp.scale_loss(loss, optimizer) as scaled_loss:
                scaled_loss.backward()
        else:
            loss.backward()
        losses.append(loss.item())
        if (step + 1) % gradient_accumulation_steps == 0:
            if args.fp16:
                torch.nn.utils.clip_grad_norm_(amp.master_params(optimizer), max_grad_norm)
            else:
                torch.nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm)
            optimizer.step(); scheduler.step()
            model.zero_grad()
    return losses


def run(steps):
    torch.manual_seed(2)
    inputs = torch.randn(steps, 8, 10)
    batches = [(each, each[:, :3].argmax(1)) for each in inputs]
    return train(nn.Sequential(nn.Linear(10, 24), nn.Tanh(), nn.Linear(24, 3)), batches)
"""

TRAINER = '''
import io
import torch
import torch.nn as nn
from apex import amp


class Trainer(object):
    def __init__(self):
        self.model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        self.model, self.optimizer = amp.initialize(self.model, self.optimizer, opt_level="O2", verbosity=0,
                                                    keep_batchnorm_fp32=True)
        self.criterion = nn.CrossEntropyLoss()

    def step(self, inputs):
        """Take one step."""
        self.optimizer.zero_grad()
        loss = self.criterion(self.model(inputs), (inputs[:, 0] > 0).long())
        with amp.scale_loss(loss, self.optimizer) as scaled_loss:
            scaled_loss.backward()
        clip = True
        if clip: nn.utils.clip_grad_norm_(amp.master_params(self.optimizer), 5.0)
        self.optimizer.step()
        return loss.item()

    @torch.no_grad()
    def evaluate(self, inputs):
        """Return the mean output."""
        self.model.eval()
        result = self.model(inputs).float().mean().item()
        self.model.train()
        return result

    def save(self, file):
        torch.save({"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(),
                    "amp": amp.state_dict()}, file)

    def load(self, file):
        state = torch.load(file)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        amp.load_state_dict(state["amp"])


def run(steps, old=None):
    torch.manual_seed(3)
    trainer = Trainer()
    if old is not None:
        trainer.load(io.BytesIO(old))
    losses = [trainer.step(torch.randn(12, 6)) for _ in range(steps)]
    file = io.BytesIO()
    trainer.save(file)
    trainer.load(io.BytesIO(file.getvalue()))
    run.saved, run.trainer = file.getvalue(), trainer
    return losses + [trainer.evaluate(torch.ones(4, 6))]
'''

FUSED = """
import torch
import apex
from apex import amp
from apex.normalization import FusedLayerNorm as LayerNorm
from apex.optimizers import FusedAdam


def run(steps):
    torch.manual_seed(4)
    net = torch.nn.Sequential(torch.nn.Linear(6, 16), LayerNorm(16), torch.nn.GELU(), torch.nn.Linear(16, 1))
    optimizer = FusedAdam(net.parameters(), lr=1e-2, betas=(0.9, 0.98), bias_correction=True)
    net, optimizer = amp.initialize(net, optimizer, opt_level="O4", verbosity=0)
    losses = []
    for step in range(steps):
        x = torch.randn(10, 6)
        with amp.scale_loss((net(x).float() - x.sum(1, keepdim=True)).pow(2).mean(), optimizer) as scaled_loss:
            losses.append(scaled_loss.item())
            scaled_loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return losses
"""
