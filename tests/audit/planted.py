"""Training loops with a planted fault of precision, each with its healthy twins."""

import copy

import torch

from ampcompat.diagnostics.audit.audit import Audit
from ampcompat.diagnostics.audit.repeated_steps import unit_in_last_place

STEPS = 12


def audited(run, argv=()):
    """Return the report of an audit of ``run()``."""
    with Audit(list(argv)) as audit:
        run()
    return audit.report()


def wrong(report):
    """Return the kinds of what is wrong."""
    return [each["kind"] for each in report["findings"] if each["is_wrong"]]


def mlp(dtype=torch.bfloat16):
    """Return two linear layers with a LayerNorm between them."""
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.LayerNorm(32), torch.nn.Linear(32, 4)).to(dtype)


def conv(dtype=torch.bfloat16):
    """Return a convolution with a BatchNorm."""
    torch.manual_seed(0)
    layers = [torch.nn.Conv1d(2, 8, 3), torch.nn.BatchNorm1d(8), torch.nn.Flatten(), torch.nn.Linear(48, 4)]
    return torch.nn.Sequential(torch.nn.Unflatten(1, (2, 8)), *layers).to(dtype)


def embedding(dtype=torch.bfloat16):
    """Return an embedding of the inputs' signs, with a bias of ones."""
    torch.manual_seed(0)

    class Signs(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.head = torch.nn.Embedding(2, 8), torch.nn.Linear(8, 4)
            self.shift = torch.nn.Parameter(torch.ones(8))

        def forward(self, x):
            return self.head(self.table((x > 0).long()).mean(1) * self.shift)

    return Signs().to(dtype)


MODELS = {"mlp": mlp, "conv": conv, "embedding": embedding}


def train(model, optimizer, steps=STEPS, after=None, autocast=None, scaler=None, clip=None, within=False, loss_of=None):
    """Train a model: by default, the mean square of its outputs.

    Args:
        after: called after each step.
        autocast: the dtype of an autocast region around the forward pass.
        scaler: a ``GradScaler``.
        clip: (when, function, limit) to clip the gradients "scaled" or "unscaled", by "norm" or "value".
        within: backward and step are within the region, too.
        loss_of: outputs in float32 -> loss.
    """
    dtype = next(model.parameters()).dtype
    for step in range(steps):
        torch.manual_seed(step)
        x = torch.randn(8, 16).to(dtype)
        optimizer.zero_grad()
        region = torch.autocast("cpu", dtype=autocast or torch.bfloat16, enabled=autocast is not None)
        with region:
            outputs = model(x).float()
            loss = outputs.pow(2).mean() if loss_of is None else loss_of(outputs)
            if within:
                _backward_and_step(model, optimizer, loss, scaler, clip)
        if not within:
            _backward_and_step(model, optimizer, loss, scaler, clip)
        if after is not None:
            after(step)


def _backward_and_step(model, optimizer, loss, scaler, clip):
    (loss if scaler is None else scaler.scale(loss)).backward()
    if clip is not None:
        when, function, limit = clip
        if when == "unscaled":
            scaler.unscale_(optimizer)
        getattr(torch.nn.utils, f"clip_grad_{function}_")(model.parameters(), limit)
    if scaler is None:
        optimizer.step()
    else:
        scaler.step(optimizer)
        scaler.update()


class Rounding(torch.optim.Optimizer):
    """SGD that keeps what rounding loses, in one of several ways.

    Args:
        how: "stochastic", "kahan", "masters" (in its state), "remainders": the 16 bits that a weight lacks, or "bytes":
            an int8 correction in 1/256 of a unit in the last place. FlashOptim has the last two, on a GPU only.
    """

    def __init__(self, params, lr, how):
        super().__init__(params, {"lr": lr, "how": how})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is not None:
                    getattr(self, group["how"])(param, -group["lr"] * param.grad.float(), self.state[param])

    def masters(self, param, update, state):
        master = state.setdefault("master", param.detach().float().clone())
        master += update
        param.copy_(master)

    def remainders(self, param, update, state):
        rest = state.setdefault("error_bits", torch.zeros(param.shape, dtype=torch.int16))
        bits = (param.view(torch.int16).int() << 16) | (rest.int() & 0xFFFF)
        bits = (bits.view(torch.float32) + update).view(torch.int32)
        param.copy_((bits >> 16).short().view(torch.bfloat16))
        rest.copy_(bits.short())

    def bytes(self, param, update, state):
        rest = state.setdefault("error_bits", torch.zeros(param.shape, dtype=torch.int8))
        exact = param.float() + rest.float() * unit_in_last_place(param) / 256 + update
        param.copy_(exact)
        rest.copy_(((exact - param.float()) / unit_in_last_place(param) * 256).round().clamp(-128, 127))

    def kahan(self, param, update, state):
        rest = state.setdefault("rest", torch.zeros_like(param))
        update = update + rest.float()
        before = param.detach().float().clone()
        param.copy_(before + update)
        rest.copy_(update - (param.float() - before))

    def stochastic(self, param, update, state):
        exact = param.float() + update
        if param.dtype is torch.float32:
            param.copy_(exact)
            return
        noise = torch.randint(0, 1 << 16, exact.shape, dtype=torch.int32)
        bits = (exact.view(torch.int32) + noise) & ~0xFFFF
        param.copy_(bits.view(torch.float32))


def average_in_place(average, model, decay=0.999):
    """Move an average of a model's weights."""
    with torch.no_grad():
        for mean, param in zip(average.parameters(), model.parameters()):
            mean.lerp_(param.to(mean.dtype), 1 - decay)


def half_average(dtype, is_written=True, decay=0.999):
    """Train a float32 model with a copy in ``dtype`` that is its average, or a frozen teacher."""
    model = mlp(torch.float32)
    average = copy.deepcopy(model).to(dtype).requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    train(model, optimizer, after=lambda step: average_in_place(average, model, decay) if is_written else None)
    return average


def kept_average(dtype, how, decay=0.999, lr=0.5):
    """Train a float32 model with an average of its weights in a dict or list: ``how`` it is written to."""
    model = mlp(torch.float32)
    averages = {name: param.detach().to(dtype, copy=True) for name, param in model.named_parameters()}

    @torch.no_grad()
    def write(step):
        weights = [param.to(dtype) for param in model.parameters()]
        for average, weight in zip(averages.values(), weights):
            if how == "lerp_":
                average.lerp_(weight, 1 - decay)
            elif how == "mul_ and add_":
                average.mul_(decay).add_(weight, alpha=1 - decay)
            elif how == ".data":
                average.data.mul_(decay).add_(weight.data, alpha=1 - decay)
            elif how == ".data is read":
                average.data.norm()
            elif how == "copy_" and step % 3 == 2:
                average.copy_(weight)
            elif how == "new .data":
                average.data = decay * average + (1 - decay) * weight
        if how == "new tensors":
            averages.update(
                (name, decay * averages[name] + (1 - decay) * each) for name, each in zip(averages, weights)
            )
        if how == "new copies":
            averages.update((name, each.clone()) for name, each in zip(averages, weights))
        if how == "foreach":
            torch._foreach_lerp_(list(averages.values()), weights, 1 - decay)

    train(model, torch.optim.SGD(model.parameters(), lr=lr), after=write)
    return averages


class Rotary(torch.nn.Module):
    """A linear layer whose outputs are multiplied by the cosines of positions and frequencies.

    Args:
        how: the products are computed under autocast ("matmul") or outside ("disabled"), or elementwise ("product").
        length: the number of positions.
    """

    def __init__(self, how, length=300):
        super().__init__()
        self.layer, self.how, self.length = torch.nn.Linear(16, 4), how, length
        self.register_buffer("frequencies", 0.1 ** torch.arange(4.0))

    def forward(self, x):
        positions = torch.arange(self.length)
        if self.how == "product":
            angles = positions[:, None].float() * self.frequencies
        else:
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.how == "matmul"):
                angles = positions.float()[:, None] @ self.frequencies[None]
        return self.layer(x) * angles.cos().mean()


def rotating(how, length=300):
    """Train a ``Rotary`` layer under bfloat16 autocast."""
    torch.manual_seed(0)
    model = Rotary(how, length)
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), autocast=torch.bfloat16)


def underflowing(scale, dtype=torch.float16, weight=1e-5, clip=None, weights=torch.float32):
    """Train with tiny gradients under autocast, or with half ``weights``, with a scaler of this scale, or none."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4)).to(weights)
    train(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        autocast=dtype if weights is torch.float32 else None,
        scaler=None if scale is None else torch.amp.GradScaler("cpu", init_scale=scale),
        clip=clip and ("scaled", "norm", clip),
        loss_of=lambda outputs: (outputs * weight).sum(),
    )


def scaled_by_hand(scale):
    """Train under float16 autocast with a loss that is multiplied by ``scale``, and gradients divided by it."""
    model = mlp(torch.float32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(STEPS):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = model(torch.randn(8, 16)).float().pow(2).mean() * 1e-3
        (loss * scale).backward()
        for param in model.parameters():
            param.grad /= scale
        optimizer.step()


def adversaries():
    """Train two bfloat16 models in turn, each of which keeps its gradients while the other has its backward pass."""
    pairs = [(model, torch.optim.SGD(model.parameters(), lr=0.5)) for model in (mlp(), mlp())]
    for _ in range(STEPS):
        for model, optimizer in pairs:
            optimizer.zero_grad()
            model(torch.randn(8, 16).bfloat16()).float().pow(2).mean().backward()
            optimizer.step()


def changing_dtype(is_restored, comes_back=False, dtype=torch.bfloat16):
    """Train a model that validation casts to half, and maybe back, or a copy of it."""
    model = mlp(torch.float32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        train(model, optimizer, steps=1)
        if step == 1:
            validated = (copy.deepcopy(model) if is_restored else model).to(dtype)
            if comes_back:
                validated.float()


def replacing_params(dtype):
    """Train a model whose params validation replaces by others, as ``module.to`` does on some devices."""
    model = mlp(torch.float32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        train(model, optimizer, steps=5)
        for layer in model:
            for name, param in layer.named_parameters(recurse=False):
                setattr(layer, name, torch.nn.Parameter(param.detach().to(dtype)))


def region_around(what):
    """Train under autocast, which is around the forward pass, or around the loss alone."""
    model = mlp(torch.float32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=what == "forward"):
            outputs = model(torch.randn(8, 16))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = outputs.float().pow(2).mean()
        loss.backward()
        optimizer.step()


def growing(dtype):
    """Train a layer after another: the optimizer gets the last one's params after 12 steps."""
    model = mlp(dtype).requires_grad_(False)
    optimizer = torch.optim.SGD(model[2].float().requires_grad_().parameters(), lr=1e-4)

    def forward(x):
        return model[2](model[1](model[0](x)).float())

    for step in range(40):
        if step == 12:
            optimizer.add_param_group({"params": list(model[0].requires_grad_().parameters())})
        optimizer.zero_grad()
        forward(torch.randn(8, 16).to(dtype)).pow(2).mean().backward()
        optimizer.step()


def accumulating(dtype):
    """Add up the gradients of two passes in each step."""
    model = mlp(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(4):
        for _ in range(2):
            model(torch.randn(8, 16).to(dtype)).float().pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def decaying(dtype, kind="AdamW", weight_decay=0.1, lr=1e-3):
    """Train with a rate whose updates are large enough, and a weight decay that may not be."""
    model = mlp(dtype)
    train(model, getattr(torch.optim, kind)(model.parameters(), lr=lr, weight_decay=weight_decay))


def warming_up(dtype, first, last=0.02, steps=30):
    """Train with a learning rate that grows after 20 steps."""
    model = mlp(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=first, weight_decay=0)

    def schedule(step):
        if step == 20:
            optimizer.param_groups[0]["lr"] = last

    train(model, optimizer, steps=steps, after=schedule)


class SmallState(torch.optim.Optimizer):
    """RMSprop whose mean squares have a dtype of their own."""

    def __init__(self, params, lr, dtype):
        super().__init__(params, {"lr": lr, "dtype": dtype})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for param in group["params"]:
                mean = self.state[param].setdefault("mean_square", torch.zeros_like(param, dtype=group["dtype"]))
                mean.mul_(0.9).addcmul_(param.grad.to(mean.dtype), param.grad.to(mean.dtype), value=0.1)
                param.addcdiv_(param.grad, mean.float().sqrt_().add_(1e-4), value=-group["lr"])


def small_state(dtype, weight=1e-3):
    """Train float32 weights with ``SmallState`` and small gradients."""
    model = mlp(torch.float32)
    train(model, SmallState(model.parameters(), 1e-4, dtype), loss_of=lambda outputs: outputs.pow(2).mean() * weight)
