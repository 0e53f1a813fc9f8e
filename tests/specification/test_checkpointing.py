"""torch.utils.checkpoint at every level: the same gradients bit for bit, less that is saved, torch's own warning."""

import inspect

import pytest
import torch
from helpers import half_kernels, loops
from helpers.networks import each_setting, initialize, session_of
from helpers.pairing import paired
from helpers.precision import HIGH, low_of
from torch.utils.checkpoint import checkpoint  # by name and before any session: as user code does

import ampcompat
from ampcompat import amp
from ampcompat.support.torch_compat import features

# torch 1.12's checkpoint queries CUDA's autocast on any machine.
pytestmark = pytest.mark.filterwarnings("ignore:.*device_type of 'cuda', but CUDA is not available")

BLOCKS, WIDTH, ROWS = 4, 16, 16


def has_both_forms():
    try:
        return "use_reentrant" in inspect.getsource(checkpoint)
    except OSError:  # a torch without its sources is a recent one
        return True


FORMS = [
    pytest.param(True, id="reentrant"),
    pytest.param(
        False,
        id="non-reentrant",
        marks=[] if has_both_forms() else [pytest.mark.skip(reason="this torch has the reentrant form only")],
    ),
]
each_form = pytest.mark.parametrize("reentrant", FORMS)


class Tower(torch.nn.Module):
    """Blocks with batch norm and dropout between two layers; ``form`` selects how the blocks are checkpointed.

    Args:
        form: True for the reentrant form, False for the other, None for no checkpoints.
        first: whether the first layer is within a checkpoint, too.
    """

    def __init__(self, form=None, first=False):
        super().__init__()
        torch.manual_seed(5)
        self.form, self.begins_inside = form, first
        self.first, self.last = torch.nn.Linear(6, WIDTH), torch.nn.Linear(WIDTH, 3)
        self.blocks = torch.nn.ModuleList(
            torch.nn.Sequential(
                torch.nn.Linear(WIDTH, 4 * WIDTH),
                torch.nn.ReLU(),
                torch.nn.Dropout(0.3),
                torch.nn.Linear(4 * WIDTH, WIDTH),
                torch.nn.LayerNorm(WIDTH),
            )
            for _ in range(BLOCKS)
        )

    def run(self, block, x):
        if self.form is None:
            return block(x)
        return checkpoint(block, x, use_reentrant=self.form) if has_both_forms() else checkpoint(block, x)

    def forward(self, x):
        x = self.run(self.first, x) if self.begins_inside else self.first(x)
        for block in self.blocks:
            x = self.run(block, x)
        return self.last(x)


def opened(setting, *arguments):
    model = Tower(*arguments).to(setting.high)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    initialize(setting, model, optimizer)
    return model, optimizer


def batch_of(setting):
    torch.manual_seed(6)
    return torch.randn(ROWS, 6).to(setting.high), torch.randint(0, 3, (ROWS,))


def train(setting, form, steps=2):
    """Return (gradients of the last step, weights, the generator's next numbers) of a run."""
    with session_of(setting):
        model, optimizer = opened(setting, form)
        inputs, labels = batch_of(setting)
        for _ in range(steps):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(inputs), labels)
            loops.backward(loss, optimizer)
            gradients = [param.grad.clone() for param in amp.master_params(optimizer)]
            optimizer.step()
        return gradients, [param.detach().clone() for param in amp.master_params(optimizer)], torch.rand(3)


@each_form
@each_setting
def test_a_run_with_dropout_is_the_same_run_to_the_last_bit(setting, reentrant):
    half_kernels.skip_without_norms(setting.level)
    if setting.level == "O5" and reentrant and features.is_version_within("1.13", "1.13"):
        pytest.skip("the layer norm of torch 1.13 rounds bfloat16 differently without gradients")
    for plain, checkpointed in zip(train(setting, None), train(setting, reentrant)):
        pairs = zip(plain, checkpointed) if isinstance(plain, list) else [(plain, checkpointed)]
        assert all(torch.equal(one, other) for one, other in pairs)


@each_setting
def test_a_reentrant_checkpoint_of_the_first_layer_warns_and_has_no_gradient(setting, session):
    half_kernels.skip_without_norms(setting.level)
    model, optimizer = opened(setting, True, True)
    with pytest.warns(UserWarning, match="None of the inputs have requires_grad=True"):
        loss = model(batch_of(setting)[0]).float().pow(2).mean()
    loops.step(loss, optimizer)
    missing = [param.grad is None for param in model.first.parameters()]
    assert missing == [True, True]


@pytest.mark.skipif(not has_both_forms(), reason="this torch has the reentrant form only")
@each_setting
def test_the_other_form_reaches_the_first_layer(setting, session):
    model, optimizer = opened(setting, False, True)
    loops.backward(model(batch_of(setting)[0]).float().pow(2).mean(), optimizer)
    assert all(param.grad is not None for param in amp.master_params(optimizer))


class CallsCheckpointed(torch.nn.Module):
    """Calls another model, none of its children, within a checkpoint."""

    def __init__(self, model, reentrant):
        super().__init__()
        self.layer, self.models, self.options = torch.nn.Linear(4, 4), [model], {}
        if has_both_forms():
            self.options = {"use_reentrant": reentrant}

    def forward(self, x):
        return checkpoint(self.models[0], self.layer(x), **self.options)


class RecordsDtypes(torch.nn.Linear):
    """Records the dtypes of its results."""

    def forward(self, x):
        result = super().forward(x)
        self.seen = getattr(self, "seen", []) + [result.dtype]
        return result.tanh()  # saved for backward: the recomputation stops at the last saved tensor


@paired("level, casting, reentrant", ("O0", "O2", "O3", "O5"), ("O1", "O4"), FORMS)
def test_a_model_called_by_one_at_another_level_is_recomputed_with_its_own_casts(casting, level, backend, reentrant):
    with ampcompat.session(backend=backend, verbosity=0):
        inner = amp.initialize(RecordsDtypes(4, 3), opt_level=casting)
        outer = CallsCheckpointed(inner, reentrant)
        optimizer = torch.optim.SGD([*outer.parameters(), *inner.parameters()], lr=0.125)
        outer, optimizer = amp.initialize(outer, optimizer, opt_level=level, loss_scale=1.0)
        loops.backward(outer(torch.ones(2, 4, dtype=HIGH)).to(HIGH).sum(), optimizer)
        assert inner.seen == [low_of(casting)] * 2
