"""Writes the files of this folder.

``python make_files.py FOLDER`` with ampcompat 0.2.0 and its alias ``apex`` on the module search path.
``losses.json`` has the losses of three more steps of each training.
"""

import json
import os
import pickle
import sys

import torch
from apex import amp
from apex.fp16_utils import FP16_Optimizer
from apex.normalization import FusedLayerNorm
from apex.optimizers import FusedAdam, FusedSGD

import ampcompat

TRAININGS = [("O1", FusedAdam), ("O2", FusedSGD), ("O3", torch.optim.SGD), ("O5", torch.optim.Adam)]


def make(level, optimizer_class):
    """Return an initialized model and its optimizer."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(4, 6), FusedLayerNorm(6), torch.nn.BatchNorm1d(6), torch.nn.Linear(6, 1)
    )
    optimizer = optimizer_class(model.parameters(), lr=0.01)
    return amp.initialize(model, optimizer, opt_level=level, verbosity=0)


def train(model, optimizer):
    """Return the losses of three steps."""
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = (model(torch.ones(3, 4).cumsum(0)).float() - 1).pow(2).mean()
        with amp.scale_loss(loss, optimizer) as scaled:
            scaled.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def write(path, value):
    """Pickle a value: every torch reads that."""
    with open(path, "wb") as file:
        pickle.dump(value, file, protocol=3)


def main(folder):
    """Write the files."""
    losses = {}
    for level, optimizer_class in TRAININGS:
        model, optimizer = make(level, optimizer_class)
        train(model, optimizer)
        states = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "amp": amp.state_dict()}
        write(os.path.join(folder, f"{level}_states.pickle"), states)
        losses[level] = train(model, optimizer)
        ampcompat.reset()
    model = torch.nn.Linear(4, 1).half()
    optimizer = FP16_Optimizer(torch.optim.SGD(model.parameters(), lr=0.01), dynamic_loss_scale=True, verbose=False)
    optimizer.backward(model(torch.ones(2, 4).half()).float().sum())
    optimizer.step()
    write(os.path.join(folder, "FP16_Optimizer_states.pickle"), optimizer.state_dict())
    with open(os.path.join(folder, "losses.json"), "w") as file:
        json.dump(losses, file, indent=1)


if __name__ == "__main__":
    main(sys.argv[1])
