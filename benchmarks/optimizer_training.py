"""One training of a small network with an optimizer: at a level, without amp, or as plain torch has the level."""

import functools
import inspect
import itertools

import torch
from torch.optim.optimizer import required

from ampcompat import amp
from ampcompat.opt_levels import OPT_LEVELS

STEPS = 6


class Setting:
    """How an optimizer is used: on which network, by which calls."""

    def __init__(self, cls, network, loop):
        self.cls, self.loop = cls, loop
        self.sparse, self.bias, self.use_muon = (network == each for each in ("sparse", "with biases", "use_muon"))
        self.needed = [
            name
            for name, each in inspect.signature(cls).parameters.items()
            if each.default in (each.empty, required) and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
        ]
        self.wraps = self.needed and self.needed[0] in ("optimizer", "base_optimizer")

    def network(self):
        """Return a new network, the same each time; one layer has as many elements as 8-bit optimizers ask for."""
        torch.default_generator.manual_seed(0)
        if self.sparse:
            return torch.nn.Sequential(torch.nn.Embedding(6, 8, sparse=True))
        linear = functools.partial(torch.nn.Linear, bias=self.bias)
        return torch.nn.Sequential(linear(8, 64), torch.nn.Tanh(), linear(64, 64), torch.nn.Tanh(), linear(64, 8))

    def optimizer(self, network, params, base=None):
        """Return a new optimizer with the class's defaults."""
        values = {
            "params": lambda: [{"params": params, "use_muon": True}] if self.use_muon else params,
            "model": lambda: network,
            "optimizer": lambda: base,
            "base_optimizer": lambda: base if self.wraps else torch.optim.SGD,
            "lr": lambda: 1e-2,
            "num_data": lambda: 12,
            "num_iterations": lambda: STEPS,
        }
        lacking = [each for each in self.needed if each not in values]
        if lacking:
            raise ValueError(f"needs {', '.join(lacking)}")
        return self.cls(**{each: values[each]() for each in self.needed})


class Training:
    """A training with an optimizer: at a level, without amp, or (``by_hand``) the level as plain torch has it."""

    def __init__(self, setting, level=None, scenario=None, by_hand=False, **options):
        torch.default_generator.manual_seed(0)
        self.setting, self.level, self.scenario = setting, None if by_hand else level, scenario
        self.by_hand = level if by_hand else None
        self.network = setting.network()
        layers = [list(each.parameters()) for each in self.network if list(each.parameters())]
        if scenario == "frozen":
            layers[0][0].requires_grad_(False)
        kept = layers.pop() if scenario == "group added" else []
        params = list(itertools.chain(*layers))
        self.optimizer = self.base = torch.optim.SGD(params, lr=1e-2, momentum=0.9)
        after = scenario == "wrapped after initialize"
        if not after:
            self.optimizer = setting.optimizer(self.network, params, self.base)
        if self.level:
            amp.initialize(self.network, self.optimizer, opt_level=level, verbosity=0, **options)
        if after:
            self.optimizer = setting.optimizer(self.network, params, self.base)
        if kept:
            self.optimizer.add_param_group({"params": kept})
        if scenario == "scheduler":
            self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.5)
        if scenario == "EMA":
            average = torch.optim.swa_utils.get_ema_multi_avg_fn(0.5)
            self.average = torch.optim.swa_utils.AveragedModel(self.network, multi_avg_fn=average)
        self.mode("train")
        self.count = 0

    def mode(self, name):
        """Put an optimizer that has modes into one, as those without schedules want it."""
        if hasattr(self.optimizer, name):
            getattr(self.optimizer, name)()

    def predicted(self, batch):
        if self.by_hand in ("O1", "O4"):
            with torch.autocast("cpu", OPT_LEVELS[self.by_hand].dtypes.low):
                return self.network(batch)
        if self.by_hand in ("O2", "O5"):
            dtype = OPT_LEVELS[self.by_hand].dtypes.low
            weights = {name: param.to(dtype) for name, param in self.network.named_parameters()}
            return torch.func.functional_call(self.network, weights, batch if self.setting.sparse else batch.to(dtype))
        return self.network(batch)

    def backward(self, factor=1.0):
        """Run a backward pass on the batch of this step; return the loss."""
        generator = torch.Generator().manual_seed(self.count)
        batch = torch.randn(12, 8, generator=generator)
        if self.setting.sparse:
            batch = torch.tensor([self.count % 6, 2, 2])
        loss = (self.predicted(batch).float() - torch.linspace(-2, 2, 8)).pow(2).mean() * factor
        options = {"create_graph": True} if self.setting.loop == "create_graph" else {}
        if self.level:
            of = self.base if self.scenario == "wrapped after initialize" else self.optimizer
            with amp.scale_loss(loss, of) as scaled:
                scaled.backward(**options)
        else:
            scale = 128.0 if self.by_hand in ("O1", "O2") else 1.0
            (loss * scale).backward(**options)
            for param in self.network.parameters() if scale != 1.0 else ():
                param.grad = None if param.grad is None else param.grad / scale
        return loss

    def step(self, factor=1.0):
        """Train a step, by the calls that the optimizer wants."""

        def closure():
            self.optimizer.zero_grad()
            for _ in range(2 if self.scenario == "accumulation" else 1):
                loss = self.backward(factor)
            return loss

        if self.setting.loop == "closure":
            self.optimizer.step(closure)
        elif self.setting.loop == "two calls":
            closure()
            self.optimizer.first_step(zero_grad=True)
            closure()
            self.optimizer.second_step(zero_grad=True)
        else:
            closure()
            self.optimizer.step()
        self.count += 1
        if self.scenario == "scheduler":
            self.scheduler.step()
        if self.scenario == "EMA":
            self.average.update_parameters(self.network)
        if self.scenario == "evaluation" and self.count == STEPS - 1:
            self.mode("eval")
            self.mode("train")

    def run(self, steps=STEPS):
        for _ in range(steps):
            self.step()
        if self.scenario == "evaluation":
            self.mode("eval")
        return self.weights()

    def weights(self):
        """Return copies of the weights, in float32; those of the average where one is kept."""
        values = self.network.state_dict()
        if self.scenario == "EMA":
            values = self.average.module.state_dict()
        return torch.cat([value.detach().float().flatten() for value in values.values()])
