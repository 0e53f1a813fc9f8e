"""Bytes per parameter that training holds, by level, at the stages of a step.

Counts every live tensor's storage once (params, gradients, masters, optimizer state, half copies, whatever it is), at

    forward     before the backward pass: params, masters, state
    backward    when it has ended, before scale_loss exits
    unscale     the most during any operation inside the exit of scale_loss
    gradients   after that exit
    step        the most during any operation inside optimizer.step()
    after       when zero_grad has run

The formula for Adam in mixed precision (Rajbhandari et al. 2020, "ZeRO", section 3.1) is 16: half params 2 and
gradients 2, float32 masters 4, first moments 4, second moments 4. Apex held 20 at O2: half and float32 gradients at
the same time. ampcompat holds 18 and two bytes for each element of the last chunks (``tensor_lists.chunked``):
float32 gradients, since optimizers may read them, but half ones are freed chunk by chunk while they are copied.
A second backward pass before the step (accumulation) holds 20.

"O5-stored" is O5 with ``store_param_remainders=True``: 14 (weights 2, remainders 2, half gradients 2, moments 8), and
the float32 values and gradients of one chunk of masters at a time, at most 1/64 of the params or the largest param.
"O5-clipped" is the same where the script asks for float32 gradients (``amp.master_params``): 16 and the chunk. Both
have the loss scale of O5, 1; the other rows have a scale of 8, so that gradients are unscaled.

    python benchmarks/memory.py [--layers 24] [--width 1024] [--levels O0 O1 …] [--device cpu]
        [--optimizers adam fused-adam adam-foreach sgd adamw-8bit muon]
"""

import gc
import importlib

import bench
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import ampcompat
from ampcompat import amp
from ampcompat.support import tensor_lists

#: Optimizers whose step torch compiles, which nothing can watch: "step" is what is held after it.
COMPILED = ("AdamW8bit",)
STAGES = ("forward", "backward", "unscale", "gradients", "step", "after")
FORMULA = 16

#: O5 with ``store_param_remainders=True``; and with the float32 gradients that ``amp.master_params`` gives to clipping.
REMAINDERS, CLIPPED = "O5-stored", "O5-clipped"


def live_bytes():
    """Return the bytes of all storages that live tensors hold, each counted once."""
    return sum({storage._cdata: storage.nbytes() for storage in live_storages() if has_memory(storage)}.values())


def has_memory(storage):
    """Return whether a storage has memory: a tensor that consists of others, as quantized state does, has none."""
    try:
        return storage.data_ptr() != 0
    except RuntimeError:
        return False


def live_storages():
    """Yield the storages of all live tensors, and of their gradients, which may not have Python objects yet."""
    for each in gc.get_objects():
        # type() instead of isinstance, which would load lazy objects and call their properties.
        if issubclass(type(each), torch.Tensor):
            yield each.untyped_storage()
            if each.is_leaf and tensor_lists.stored_gradient(each) is not None:
                yield tensor_lists.stored_gradient(each).untyped_storage()


class HighWater(TorchDispatchMode):
    """Records the most bytes that storages held at the start or end of an operation.

    Counts storages that were created and not yet freed, on top of those that existed before: walking all objects at
    every operation would take minutes.
    """

    def __init__(self):
        super().__init__()
        gc.collect()
        self.known = {}  # address -> (weak storage, bytes)
        for storage in live_storages():
            self._see(storage)
        self.most = self._now()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for each in result if isinstance(result, (list, tuple)) else (result,):
            if isinstance(each, torch.Tensor):
                self._see(each.untyped_storage())
        self.most = max(self.most, self._now())
        return result

    def _see(self, storage):
        if not has_memory(storage):
            return
        self.known[storage._cdata] = torch.multiprocessing.reductions.StorageWeakRef(storage), storage.nbytes()

    def _now(self):
        self.known = {key: held for key, held in self.known.items() if not held[0].expired()}
        return sum(size for _, size in self.known.values())


def measure(level, layers, width, make_optimizer, device="cpu"):
    """Return {stage: bytes per param} of the third step of a level; the first two let state appear."""
    gc.collect()
    before = live_bytes()
    model = torch.nn.Sequential(*[torch.nn.Linear(width, width) for _ in range(layers)]).to(device)
    params = sum(param.numel() for param in model.parameters())
    optimizer = make_optimizer(model.parameters())
    options = {"store_param_remainders": True} if level in (REMAINDERS, CLIPPED) else {"loss_scale": 8.0}
    amp.initialize(model, optimizer, opt_level=level[:2], verbosity=0, **options)
    x = torch.zeros(1, width, device=device)
    clips = level == CLIPPED
    try:
        for _ in range(2):
            one_step(model, optimizer, x, clips)
        gc.collect()
        found = one_step(model, optimizer, x, clips, watched=True)
        return {stage: (held - before) / params for stage, held in found.items()}
    finally:
        ampcompat.reset()


def one_step(model, optimizer, x, clips=False, watched=False):
    """Do one iteration; return {stage: bytes}."""
    found = {}
    found["forward"] = watched and live_bytes()
    loss = model(x).float().sum()
    context = amp.scale_loss(loss, optimizer)
    with_scale = context.__enter__()
    with_scale.backward()
    del loss, with_scale
    found["backward"] = watched and live_bytes()
    found["unscale"] = most_during(lambda: context.__exit__(None, None, None), watched)
    if clips:
        for param in amp.master_params(optimizer):
            param.grad.clamp_(-1.0, 1.0)
    found["gradients"] = watched and live_bytes()
    found["step"] = most_during(optimizer.step, watched and type(optimizer).__name__ not in COMPILED) or live_bytes()
    optimizer.zero_grad()
    found["after"] = watched and live_bytes()
    return found


def most_during(function, watched):
    """Call ``function`` and return the most bytes that were held meanwhile."""
    if not watched:
        function()
        return 0
    with HighWater() as water:
        function()
    return water.most


OPTIMIZERS = {
    "adam": lambda params: torch.optim.Adam(params, foreach=False),
    "adam-foreach": lambda params: torch.optim.Adam(params, foreach=True),
    "fused-adam": lambda params: torch.optim.Adam(params, fused=True),
    "sgd": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, foreach=False),
    "adamw-8bit": lambda params: importlib.import_module("torchao.optim").AdamW8bit(params),
    "muon": lambda params: torch.optim.Muon([param for param in params if param.dim() == 2]),  # matrices alone
}


def main():
    stated = bench.options(
        __doc__,
        layers=24,
        width=1024,
        levels=[*bench.LEVELS, REMAINDERS, CLIPPED],
        optimizers=["adam", "fused-adam"],
        device="cpu",
        choices={"optimizers": OPTIMIZERS},
    )
    params = stated.layers * (stated.width + 1) * stated.width
    print(f"torch {torch.__version__}, {params:,} params, chunks of {tensor_lists.CHUNK:,}")
    print(f"bytes per param; the formula for mixed precision with Adam is {FORMULA}")
    bench.heading("optimizer", "level", *STAGES, "peak")
    for name in stated.optimizers:
        for level in stated.levels:
            held = measure(level, stated.layers, stated.width, OPTIMIZERS[name], stated.device)
            bench.row(name, level, *[f"{held[stage]:.2f}" for stage in STAGES], f"{max(held.values()):.2f}")


if __name__ == "__main__":
    main()
