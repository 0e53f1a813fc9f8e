"""Training runs that are saved half-way, for the checkpoint tests: a network, its batches, optimizers, ``Run``.

The uninterrupted runs are trained once. Results are compared bit by bit, master weights, momenta and scales included.
"""

import functools
import io

import torch
from helpers import fused_optimizers, loops
from helpers.precision import HIGH

import ampcompat
from ampcompat import amp

OPTIMIZERS = {
    "SGD": lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.9, weight_decay=1e-3),
    "Adam": lambda params: torch.optim.Adam(params, lr=0.01, eps=1e-4),
    "AdamW": lambda params: torch.optim.AdamW(params, lr=0.01, eps=1e-4),
}
if fused_optimizers.why_not("Adam") is None:  # it skips on the device, with no host read in between
    OPTIMIZERS["fused Adam"] = lambda params: torch.optim.Adam(params, lr=0.01, eps=1e-4, fused=True)
SAVED_AT, STEPS = 3, 6
#: Large enough that float16 gradients overflow once or twice on the way: skips are part of what must resume.
FIRST_SCALE = 2.0**14


class Run:
    """A model and an optimizer, from a seed.

    Args:
        level: the opt level.
        name: which of ``OPTIMIZERS``.
        seed: of the first weights; a resumed run has another one than the run that it resumes.
    """

    def __init__(self, level, name, seed=0):
        torch.manual_seed(seed)
        self.level = level
        self.model = torch.nn.Sequential(
            torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 3)
        ).to(HIGH)
        self.optimizer = OPTIMIZERS[name](self.model.parameters())

    def initialize(self, **options):
        """Call ``amp.initialize``; the scale is dynamic unless ``options`` say otherwise."""
        options.setdefault("loss_scale", "dynamic")
        amp.initialize(self.model, self.optimizer, opt_level=self.level, verbosity=0, **options)
        if options["loss_scale"] == "dynamic":
            amp._amp_state._amp_state.loss_scalers[0]._loss_scale = FIRST_SCALE
        return self

    def backward(self, index, **options):
        """Do one backward pass on batch ``index``."""
        generator = torch.Generator().manual_seed(100 + index)
        inputs = torch.randn(5, 6, generator=generator).to(HIGH)
        target = torch.randint(0, 3, (5,), generator=generator)
        factor = 2.0**12 if index == 1 else 1.0  # overflows float16 in the second step
        loss = torch.nn.functional.cross_entropy(self.model(inputs), target) * factor
        loops.backward(loss, self.optimizer, **options)
        return loss.item()

    def train(self, first, last):
        """Train on batches ``first`` to ``last`` - 1; return the losses."""
        losses = []
        for index in range(first, last):
            self.optimizer.zero_grad()
            losses.append(self.backward(index))
            self.optimizer.step()
        return losses

    def checkpoint(self):
        """Return the checkpoint that Apex's documentation recommends."""
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "amp": amp.state_dict()}

    def load(self, checkpoint):
        """Restore all of a checkpoint."""
        self.model.load_state_dict(checkpoint["model"])
        self.optimizer.load_state_dict(checkpoint["optimizer"])
        amp.load_state_dict(checkpoint["amp"])

    def portrait(self):
        """Return params, buffers, masters, the optimizer's state and the scalers as one dict of tensors."""
        found = {name: param.detach().clone() for name, param in self.model.named_parameters()}
        found.update((name, buffer.clone()) for name, buffer in self.model.named_buffers())
        for index, master in enumerate(amp.master_params(self.optimizer)):
            found[f"master {index}"] = master.detach().clone()
            for name, value in self.optimizer.state[master].items():
                found[f"{name} {index}"] = torch.as_tensor(0 if value is None else value).clone()
        for name, state in amp.state_dict().items():
            found[name] = torch.tensor([state["loss_scale"], float(state["unskipped"])])
        return found


def written(checkpoint):
    """Return the bytes that ``torch.save`` writes."""
    file = io.BytesIO()
    torch.save(checkpoint, file)
    return file.getvalue()


def read(path_or_bytes, **options):
    """Return the checkpoint in a file, or in such bytes."""
    source = io.BytesIO(path_or_bytes) if isinstance(path_or_bytes, bytes) else str(path_or_bytes)
    return torch.load(source, **options)


def lacks_weights_only():
    """Say why this torch cannot load a checkpoint with ``weights_only``, or return None."""
    try:
        torch.load(io.BytesIO(written({"scale": 0.5})), weights_only=True)
    except TypeError:
        return "this torch.load has no weights_only"
    except Exception as error:  # torch 1.13: its UnpicklingError is of a module that moved
        return f"this torch's weights_only cannot read a Python float: {str(error)[-24:]}"
    return None


@functools.lru_cache(maxsize=None)
def uninterrupted(level, name):
    """Return (the file that was written after ``SAVED_AT`` steps, the portrait after ``STEPS``, the losses)."""
    run = Run(level, name).initialize()
    try:
        losses = run.train(0, SAVED_AT)
        file = written(run.checkpoint())
        losses += run.train(SAVED_AT, STEPS)
        return file, run.portrait(), losses
    finally:
        ampcompat.reset()
