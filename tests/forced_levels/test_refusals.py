"""Scripts that no level can be forced on: an error that names the line, before any weight changes."""

import copy

import pytest
import torch
from torch import nn

from ampcompat.errors import AmpError
from ampcompat.launch.forced_levels.forced_level import forced, is_supported

pytestmark = [
    pytest.mark.skipif(not is_supported(), reason="forced levels need torch 2.1"),
    pytest.mark.usefixtures("quiet"),
]
LINE = r"test_refusals\.py:\d+"


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.LBFGS])
def test_an_optimizer_of_tensors_without_a_module(level, kind):
    image = torch.zeros(3, requires_grad=True)
    with forced(level):
        optimizer = kind([image], lr=0.1)

        def closure():
            optimizer.zero_grad()
            loss = (image - 1).pow(2).sum()
            loss.backward()
            return loss

        with pytest.raises(AmpError, match=f"{kind.__name__} of .*{LINE}.*no module.*without --opt-level"):
            if kind is torch.optim.SGD:
                closure()
                optimizer.step()
            optimizer.step(closure)
    assert image.tolist() == [0.0, 0.0, 0.0]


def test_gradients_of_torch_func(level):
    model = nn.Linear(2, 1)
    before = copy.deepcopy(model.state_dict())
    with forced(level):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        params = {name: param.detach() for name, param in model.named_parameters()}
        gradients = torch.func.grad(lambda each: torch.func.functional_call(model, each, torch.ones(1, 2)).sum())(
            params
        )
        for name, param in model.named_parameters():
            param.grad = gradients[name]
        with pytest.raises(AmpError, match=f"{LINE}.*torch.func"):
            optimizer.step()
    assert all(torch.equal(model.state_dict()[name], value) for name, value in before.items())


def test_a_step_is_checked_after_something_was_compiled():
    """At the first compilation the compilers of torch 2.1 and 2.2 turn off hooks of steps, by which it is checked."""
    with forced("O2"):
        torch.compile(nn.Linear(2, 1), backend="eager")
        optimizer = torch.optim.SGD(nn.Linear(2, 1).parameters(), lr=0.1)
        optimizer.param_groups[0]["params"][0].grad = torch.ones(1, 2)
        with pytest.raises(AmpError, match=f"{LINE}.*torch.func"):
            optimizer.step()


@pytest.mark.parametrize(
    "method, arguments, options",
    [
        ("half", (), {}),
        ("bfloat16", (), {}),
        ("to", ("cpu", torch.float16), {}),
        ("to", (), {"dtype": torch.bfloat16}),
        ("to", (torch.ones((), dtype=torch.half),), {}),
        ("type", (torch.half,), {}),
    ],
)
def test_a_model_that_the_script_casts(method, arguments, options, level="O2"):
    with forced(level):
        model = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with pytest.raises(AmpError, match=rf"{LINE}.*\.{method}\(\).*Remove the call"):
            getattr(model, method)(*arguments, **options)
        model.to("cpu", torch.float32)
        model(torch.ones(1, 2)).sum().backward()
        with pytest.raises(AmpError, match=rf"\.{method}\(\)"):
            getattr(model, method)(*arguments, **options)
        optimizer.step()
        getattr(copy.deepcopy(model), method)(*arguments, **options)


def step_in_hooks(model):
    """Let an optimizer of each param step in a hook of the backward pass."""
    optimizers = {param: torch.optim.SGD([param], lr=0.25) for param in model.parameters()}
    for param in optimizers:
        param.register_post_accumulate_grad_hook(lambda param: optimizers[param].step())


@pytest.mark.parametrize("forced_level", ["O1", "O2"])
def test_an_optimizer_that_steps_in_hooks_of_the_backward_pass(forced_level):
    with forced(forced_level):
        model = nn.Linear(2, 1)
        before = copy.deepcopy(model.state_dict())
        step_in_hooks(model)
        with pytest.raises(AmpError, match=rf"{LINE}.*within a backward pass.*O4 and O5"):
            model(torch.ones(1, 2)).sum().backward()
        assert all(torch.equal(model.state_dict()[name], value) for name, value in before.items())


@pytest.mark.parametrize("forced_level", ["O0", "O3", "O4", "O5"])
def test_steps_in_hooks_of_the_backward_pass_work_where_nothing_is_scaled(forced_level):
    with forced(forced_level):
        model = nn.Linear(2, 1)
        step_in_hooks(model)
        bias = model.bias.detach().clone()
        model(torch.ones(1, 2)).sum().backward()
        changed = model.state_dict()["bias"] - bias
        assert torch.allclose(changed, torch.tensor(-0.25), atol=2e-3)  # O3 rounds weights to float16


@pytest.mark.parametrize("forced_level", ["O2", "O5"])
def test_an_inner_optimizer_that_steps_by_itself(forced_level):
    with forced(forced_level):
        model = nn.Linear(2, 1)
        before = copy.deepcopy(model.state_dict())
        outer = torch.optim.SGD(model.parameters(), lr=0.1)
        inner = torch.optim.Adam(outer.param_groups)
        inner.param_groups = outer.param_groups
        (model(torch.ones(1, 2)).sum() / 256).backward()
        with pytest.raises(AmpError, match=f"Adam of .*{LINE}.*SGD.step"):
            inner.step()
        assert all(torch.equal(model.state_dict()[name], value) for name, value in before.items())


def test_a_float64_model(level):
    with forced(level):
        model = nn.Linear(2, 1).double()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with pytest.raises(AmpError, match=rf"SGD of .*{LINE} trains float64 params, .*{level} .*remove \.double\(\)"):
            model(torch.ones(1, 2).double())
    assert optimizer is not None and model.weight.dtype is torch.float64


@pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no torch.distributed")
@pytest.mark.filterwarnings("ignore:.*FSDP.*:UserWarning", "ignore:.*FullyShardedDataParallel.*:FutureWarning")
@pytest.mark.parametrize("wraps_all", [True, False])
def test_a_model_in_the_first_fsdp(wraps_all, tmp_path, level="O2"):
    from torch.distributed.fsdp import FullyShardedDataParallel

    meeting = f"file://{tmp_path / 'meeting'}"
    torch.distributed.init_process_group("gloo", init_method=meeting, rank=0, world_size=1)
    try:
        with forced(level):
            model = FullyShardedDataParallel(nn.Linear(2, 1), device_id=torch.device("cpu"))
            model = model if wraps_all else nn.Sequential(model)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            with pytest.raises(AmpError, match=rf"SGD of .*{LINE} trains a model in FullyShard.* O2 .*fully_shard"):
                model(torch.ones(1, 2))
        assert {param.dtype for param in model.parameters()} == {torch.float32} and optimizer is not None
    finally:
        torch.distributed.destroy_process_group()


def test_gradients_per_sample(level):
    with forced(level):
        model = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for param in model.parameters():
            param.grad_sample = None  # as opacus does
        if level == "O0":
            assert model(torch.ones(1, 2)).requires_grad and optimizer is not None
            return
        with pytest.raises(AmpError, match=rf"SGD of .*{LINE} uses per-sample gradients .* O0"):
            model(torch.ones(1, 2))
