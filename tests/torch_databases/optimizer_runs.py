"""A few training steps with every configuration of torch's database of optimizers, with amp and without."""

import copy
import functools

import torch
from databases import load

from ampcompat import amp

STEPS = 6


class Configuration:
    """One way to construct an optimizer: an entry of the database, with each implementation that runs on a CPU."""

    def __init__(self, info, kwargs, description):
        self.info, self.kwargs = info, kwargs
        self.name = f"{info.optim_cls.__name__}, {description}"

    def network(self):
        """Return a new network, the same each time; its gradients are sparse where the optimizer takes only those."""
        torch.default_generator.manual_seed(0)
        if self.info.only_supports_sparse_grads:
            return torch.nn.Embedding(6, 8, sparse=True)
        has_bias = self.info.optim_cls.__name__ != "Muon"  # which takes matrices alone
        return torch.nn.Sequential(
            torch.nn.Linear(8, 16, bias=has_bias), torch.nn.Tanh(), torch.nn.Linear(16, 8, bias=has_bias)
        )

    def optimizer(self, network):
        return self.info.optim_cls(network.parameters(), **copy.deepcopy(self.kwargs))

    def batches(self):
        """Return the inputs of all steps."""
        generator = torch.Generator().manual_seed(1)
        if self.info.only_supports_sparse_grads:
            return [torch.tensor([step % 6, 2, 2]) for step in range(STEPS)]
        return [torch.randn(12, 8, generator=generator) for _ in range(STEPS)]


@functools.lru_cache(maxsize=None)
def configurations():
    """Return every configuration for the CPU; of each class two with foreach and all with fused kernels too.

    Left out are those that leave the finite numbers in plain torch: LBFGS where it maximizes a loss without bound.
    """
    found = []
    for info in load("common_optimizers", "optim_db"):
        inputs = info.optim_inputs_func(device="cpu")
        found += [Configuration(info, each.kwargs, each.desc) for each in inputs]
        if "foreach" in info.supported_impls:
            found += [
                Configuration(info, {**each.kwargs, "foreach": True}, f"{each.desc}, foreach") for each in inputs[:2]
            ]
        if "cpu" in getattr(info, "supports_fused_on", ()):
            found += [Configuration(info, {**each.kwargs, "fused": True}, f"{each.desc}, fused") for each in inputs]
    return [each for each in found if all(bool(torch.isfinite(end).all()) for end in train_plainly(each)[-1])]


def loss_of(network, batch):
    """Return the loss of a batch: the squared distance to values that the network cannot reach."""
    target = torch.linspace(-2, 2, 8)
    return (network(batch).float() - target).pow(2).mean()


def values_of(network):
    return [param.detach().float().clone() for param in network.parameters()]


@functools.lru_cache(maxsize=None)
def train_plainly(configuration):
    """Return the weights before the first step and after each, trained in float32 without amp."""
    network = configuration.network()
    optimizer = configuration.optimizer(network)
    weights = [values_of(network)]
    for batch in configuration.batches():

        def closure(batch=batch):
            optimizer.zero_grad()
            loss = loss_of(network, batch)
            loss.backward()
            return loss

        if configuration.info.step_requires_closure:
            optimizer.step(closure)
        else:
            closure()
            optimizer.step()
        weights.append(values_of(network))
    return weights


class AmpTraining:
    """The same training at a level. ``step`` trains one batch; ``weights`` are the float32 ones."""

    def __init__(self, configuration, level, **options):
        self.configuration = configuration
        self.network = configuration.network()
        self.optimizer = configuration.optimizer(self.network)
        amp.initialize(self.network, self.optimizer, opt_level=level, verbosity=0, **options)

    def weights(self):
        return [param.detach().clone() for param in amp.master_params(self.optimizer)]

    def step(self, batch, factor=1.0):
        """Train one batch, with the loss times a factor."""

        def closure():
            self.optimizer.zero_grad()
            loss = loss_of(self.network, batch) * factor
            with amp.scale_loss(loss, self.optimizer) as scaled:
                scaled.backward()
            return loss

        if self.configuration.info.step_requires_closure:
            self.optimizer.step(closure)
        else:
            closure()
            self.optimizer.step()


def state_of(optimizer):
    """Return the tensors and numbers of an optimizer's state, in its own order."""
    return [
        copy.deepcopy(optimizer.state.get(param, {})) for group in optimizer.param_groups for param in group["params"]
    ]
