"""Models at different levels in one process: each computes at its own level, whatever the others do."""

import pytest
import torch
from helpers import compilers, loops
from helpers.pairing import paired
from helpers.precision import HIGH, low_of

import ampcompat
from ampcompat import amp

CASTING = ("O1", "O4")
OTHERS = ("O0", "O2", "O3", "O5")


class Doubled(torch.autograd.Function):
    """Records the dtypes of a product in its forward and one in its backward."""

    seen = []

    @staticmethod
    def forward(ctx, x):
        Doubled.seen.append(torch.mm(x, x.t()).dtype)
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        Doubled.seen.append(torch.mm(gradient, gradient.t()).dtype)
        return gradient * 2


class Network(torch.nn.Module):
    """Has functions of each rule, and layers that take inputs of their weights' dtype only."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.recurrent = torch.nn.Linear(4, 6), torch.nn.LayerNorm(6), torch.nn.GRU(6, 6)
        self.batch_norm, self.last = torch.nn.BatchNorm1d(6), torch.nn.Linear(6, 3)
        self.seen = []

    def forward(self, x):
        x = self._record(self.norm(self._record(self.first(x))))
        x = self._record(self.batch_norm(torch.softmax(x, 1)))
        x = self._record(self.recurrent(x.pow(2).unsqueeze(0))[0].squeeze(0))
        return self.last(Doubled.apply(torch.cat([x[:2], x[2:] + x.mean()])))

    def _record(self, x):
        self.seen.append(x.dtype)
        return x


def trained(backend, levels, of):
    """Initialize a network at each level in this order; train the one at the level ``of``.

    Returns:
        The dtypes of its activations and in its custom function, and its weights.
    """
    batch = torch.randn(5, 4, generator=torch.Generator().manual_seed(1)).to(HIGH)
    del Doubled.seen[:]
    with ampcompat.session(backend=backend, verbosity=0):
        made = {}
        for level in levels:
            torch.manual_seed(0)
            model = Network()
            made[level] = model, torch.optim.SGD(model.parameters(), lr=0.125)
            amp.initialize(*made[level], opt_level=level, loss_scale=128.0)
        model, optimizer = made[of]
        for _ in range(2):
            optimizer.zero_grad()
            loops.step(model(batch).pow(2).mean(), optimizer)
        return model.seen, list(Doubled.seen), [param.detach().clone() for param in model.parameters()]


def are_equal(first, second):
    return first[:2] == second[:2] and all(map(torch.equal, first[2], second[2]))


@paired("level, casting, is_first", OTHERS, CASTING, [True, False])
def test_a_model_trains_alike_beside_one_whose_functions_are_cast(level, casting, is_first, backend):
    alone = trained("auto", [level], level)
    assert set(alone[0]) == {HIGH if level == "O0" else low_of(level)}
    assert are_equal(trained(backend, [level, casting] if is_first else [casting, level], level), alone)


@paired("level, casting, is_first", OTHERS, CASTING, [True, False])
def test_functions_are_cast_alike_beside_a_model_at_another_level(level, casting, is_first, backend):
    alone = trained(backend, [casting], casting)
    assert are_equal(trained(backend, [casting, level] if is_first else [level, casting], casting), alone)


class Around(torch.nn.Module):
    """Calls another model, none of its children, in its ``forward``."""

    def __init__(self, model):
        super().__init__()
        self.layer, self.models = torch.nn.Linear(4, 4), [model]

    def forward(self, x):
        self.before = self.layer(x)
        self.within = self.models[0](self.before)
        self.after = self.layer(self.before)
        return self.within


@paired("level, casting", OTHERS, CASTING)
def test_a_model_whose_functions_are_cast_is_called_by_one_at_another_level(level, casting, backend):
    with ampcompat.session(backend=backend, verbosity=0):
        inner = amp.initialize(torch.nn.Linear(4, 3), opt_level=casting)
        outer = amp.initialize(Around(inner), opt_level=level)
        outer(torch.ones(2, 4, dtype=HIGH))
        own = HIGH if level == "O0" else low_of(level)
        assert (outer.before.dtype, outer.within.dtype, outer.after.dtype) == (own, low_of(casting), own)


class Reporting(torch.nn.Linear):
    """Returns the dtype of its product too."""

    def forward(self, x):
        result = super().forward(x)
        return result, str(result.dtype)


@pytest.mark.skipif(not compilers.TELLS_THAT_IT_TRACES, reason="this torch has no compiler that tells when it traces")
@pytest.mark.filterwarnings("ignore:Dynamo d:UserWarning", "ignore:The .grad attribute")  # the compiler's own
@pytest.mark.parametrize("level, casting", [("O2", "O1"), ("O0", "O4")])
def test_compiled_models_compute_at_their_own_levels_too(level, casting, backend, compiler_forgets):
    own = {casting: low_of(casting), level: HIGH if level == "O0" else low_of(level)}
    with ampcompat.session(backend=backend, verbosity=0):
        models = {}
        for each in (casting, level):
            model = Reporting(4, 3)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.125)
            amp.initialize(model, optimizer, opt_level=each, loss_scale=1.0)
            models[each] = torch.compile(model, backend="aot_eager"), optimizer
        for _ in range(2):
            for each, (model, optimizer) in models.items():
                result, computed_in = model(torch.ones(2, 4, dtype=HIGH))
                loops.step(result.to(HIGH).sum(), optimizer)
                assert computed_in == str(own[each])
