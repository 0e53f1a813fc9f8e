"""Loops of several models, optimizers, closures and wrappers under a forced level, against ``amp`` by hand."""

import copy
import gc
import inspect

import pytest
import torch
from amp_by_hand import SMALL, assert_equal, backward, begin, both
from helpers import compilers, sharding
from helpers.copies import saved_and_loaded
from torch import nn
from torch.nn import functional

from ampcompat import amp
from ampcompat.engine.optimizers.optimizer_record import record_of
from ampcompat.launch.forced_levels.forced_level import forced, is_supported
from ampcompat.support.torch_compat import features

pytestmark = [
    pytest.mark.skipif(not is_supported(), reason="forced levels need torch 2.1"),
    pytest.mark.usefixtures("quiet"),
]


def mlp(first=4, last=1):
    return nn.Sequential(nn.Linear(first, 6), nn.Tanh(), nn.Linear(6, last))


def sgd(*modules):
    return torch.optim.SGD([param for each in modules for param in each.parameters()], lr=0.5)


def weights(*models):
    return [each.clone() for model in models for each in model.state_dict().values()]


def adversarial(hand):
    """Return the weights of a generator and a discriminator after some steps."""
    generator, discriminator = mlp(2, 4), mlp()
    optimizers = begin(hand, [generator, discriminator], [sgd(generator), sgd(discriminator)])
    for _ in range(3):
        fake = generator(torch.ones(2, 2))
        discriminator.zero_grad()
        for loss in (discriminator(torch.ones(2, 4)).mean() * SMALL, -discriminator(fake.detach()).mean() * SMALL):
            backward(hand, loss, optimizers[1])
        optimizers[1].step()
        optimizers[0].zero_grad()
        backward(hand, discriminator(fake).mean() * SMALL, optimizers[0])
        optimizers[0].step()
    return weights(generator, discriminator)


def test_an_adversarial_loop(level):
    assert_equal(*both(level, adversarial))


def test_an_overflow_of_one_optimizers_pass_skips_its_step_only():
    with forced("O1"):
        generator, discriminator = mlp(2, 4), mlp()
        optimizers = sgd(generator), sgd(discriminator)
        (discriminator(generator(torch.ones(2, 2))).sum() * 2.0**20).backward()
        optimizers[0].step()
        discriminator.zero_grad()
        (discriminator(torch.ones(2, 4)).sum() * SMALL).backward()
        optimizers[1].step()
        assert [amp.step_was_skipped(each) for each in optimizers] == [True, False]
        assert all(record_of(each).configuration.scalers[0].loss_scale() == 2.0**15 for each in optimizers)


def test_two_optimizers_of_one_model(level):
    def run(hand):
        model = mlp()
        optimizers = begin(hand, model, [sgd(model[0]), sgd(model[2])])
        for _ in range(2):
            for each in optimizers:
                each.zero_grad()
            backward(hand, model(torch.ones(2, 4)).sum() * SMALL, optimizers)
            for each in optimizers:
                each.step()
        return weights(model)

    assert_equal(*both(level, run))


def test_gradients_of_several_passes_add_up(level):
    def run(hand):
        model = mlp()
        optimizer = begin(hand, model, sgd(model))
        for index in range(4):
            backward(hand, model(torch.full((2, 4), index + 1.0)).sum() * SMALL, optimizer)
            if index % 2:
                nn.utils.clip_grad_norm_(model.parameters(), 0.01)
                optimizer.step()
                model.zero_grad()
        return weights(model)

    assert_equal(*both(level, run))


@pytest.mark.parametrize("make", [lambda model: torch.optim.LBFGS(model.parameters(), max_iter=3), sgd], ids="LS")
def test_closures(level, make):
    def run(hand):
        model = mlp()
        optimizer = begin(hand, model, make(model))

        def closure():
            optimizer.zero_grad()
            loss = model(torch.ones(2, 4)).pow(2).sum() * SMALL
            backward(hand, loss, optimizer)
            return loss

        for _ in range(2):
            optimizer.step(closure)
        return weights(model)

    assert_equal(*both(level, run))


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_gradient_checkpoints(level, use_reentrant):
    from torch.utils.checkpoint import checkpoint

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = mlp(4, 4), nn.Linear(4, 1)

        def forward(self, inputs):
            return self.head(checkpoint(self.body, inputs, use_reentrant=use_reentrant))

    def run(hand):
        model = Model()
        optimizer = begin(hand, model, sgd(model))
        return train(model, lambda inputs: model(inputs.requires_grad_()), optimizer, hand)

    assert_equal(*both(level, run))


def train(model, called, optimizer, hand=None, steps=2):
    for _ in range(steps):
        optimizer.zero_grad()
        backward(hand, called(torch.ones(2, 4)).sum() * SMALL, optimizer)
        optimizer.step()
    return weights(model)


def test_data_parallel_models(level):
    def run(hand):
        model = mlp()
        optimizer = begin(hand, model, sgd(model))
        return train(model, nn.DataParallel(model), optimizer, hand)

    assert_equal(*both(level, run))


def test_evaluation_deep_copies_and_whole_models_that_are_saved(level):
    def run(hand):
        model = mlp()
        optimizer = begin(hand, model, sgd(model))
        train(model, model, optimizer, hand)
        with torch.no_grad():
            return [each.eval()(torch.ones(2, 4)) for each in (model, copy.deepcopy(model), saved_and_loaded(model))]

    assert_equal(*both(level, run))


@pytest.mark.usefixtures("compiler_forgets")
@pytest.mark.parametrize("method", ["function", "method"])
def test_compiled_models(level, method):
    def run(hand):
        model = mlp()
        optimizer = begin(hand, model, sgd(model)) if hand is not None else None
        called = model
        if method == "method":
            model.compile(backend="eager")
        else:
            called = torch.compile(model, backend="eager")
        return train(model, called, optimizer or sgd(called), hand)

    found = both(level, run)
    if compilers.TELLS_THAT_IT_TRACES:
        assert_equal(*found)
    else:  # compiled before `initialize`, products are those of torch, which rounds otherwise than emulated half
        assert all(torch.allclose(one, other, atol=2e-3) for one, other in zip(*found))


@pytest.fixture
def group(tmp_path):
    torch.distributed.init_process_group(
        "gloo", init_method="file://{}".format(tmp_path / "group"), rank=0, world_size=1
    )
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no torch.distributed")
def test_distributed_models(level, group):
    if level == "O5" and features.is_version_within(newest="2.1"):
        pytest.skip("gloo of torch 2.1 reduces no bfloat16")

    def run(hand):
        model = mlp()
        optimizer = begin(hand, model, sgd(model)) if hand is not None else None
        wrapper = nn.parallel.DistributedDataParallel(model)
        return train(model, wrapper, optimizer or sgd(wrapper), hand)

    assert_equal(*both(level, run))


@pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no torch.distributed")
def test_what_a_distributed_model_was_told_before_its_first_pass_holds(group):
    with forced("O0"):
        model = nn.ModuleList([mlp(), mlp()])
        optimizer = sgd(model)
        model.forward = lambda x: model[0](x)  # the other layers are not used
        wrapper = nn.parallel.DistributedDataParallel(model)
        wrapper._set_static_graph()
        wrapper._register_builtin_comm_hook(torch.distributed.BuiltinCommHookType.FP16_COMPRESS)
        for _ in range(2):
            optimizer.zero_grad()
            (wrapper(torch.rand(3, 4)).sum() / 3).backward()
    assert all(torch.equal(param.grad.half().float(), param.grad) for param in model[0].parameters())


def test_a_second_optimizer_of_a_prepared_model(level):
    with forced(level):
        model = mlp()
        train(model, model, sgd(model))
        gc.collect()  # of two optimizers with one half param the first takes its gradients
        before = weights(model)
        later = train(model, model, sgd(model))
        assert not any(torch.equal(one, other) for one, other in zip(before, later))


def test_params_unfrozen_and_added_later_train(level):
    with forced(level):
        model = mlp()
        optimizer = sgd(model[2])
        train(model, model, optimizer)
        before = weights(model[0])
        optimizer.add_param_group({"params": list(model[0].parameters())})
        train(model, model, optimizer)
        assert not any(torch.equal(one, other) for one, other in zip(before, weights(model[0])))


def test_parts_of_a_container_that_is_never_called(level):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder, self.decoders = nn.Linear(4, 3), nn.ModuleList([mlp(3), mlp(3)])

        def compute_loss(self, inputs):
            return sum(each(self.encoder(inputs)).sum() for each in self.decoders) * SMALL

    with forced(level):
        model = Model()
        optimizer = sgd(model)
        before = weights(model)
        for _ in range(2):
            optimizer.zero_grad()
            model.compute_loss(torch.ones(2, 4)).backward()
            optimizer.step()
        after = weights(model)
        assert not any(torch.equal(one, other) for one, other in zip(before, after))
        assert {each.dtype for each in after} == {torch.float32}


def test_sharded_models(level, group):
    if sharding.why_not():
        pytest.skip(sharding.why_not())
    from torch.distributed import fsdp
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (1,))
    with forced(level):
        model = fsdp.fully_shard(mlp(), mesh=mesh)
        optimizer = sgd(model)
        before = [each.full_tensor().clone() for each in model.parameters()]
        train(model, model, optimizer)
        assert not any(torch.equal(one.full_tensor(), other) for one, other in zip(model.parameters(), before))


def test_sharded_models_with_bfloat16_weights_train_as_unsharded_ones_at_o5(group):
    if sharding.why_not():
        pytest.skip(sharding.why_not())
    from torch.distributed import fsdp
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (1,))
    with forced("O5"):
        plain = mlp().bfloat16()
        model = fsdp.fully_shard(copy.deepcopy(plain), mesh=mesh)
        for each in (plain, model):
            train(each, each, sgd(each))
        assert all(torch.equal(one, other.full_tensor()) for one, other in zip(plain.parameters(), model.parameters()))


def test_a_pass_of_two_optimizers_counts_once(level):
    with forced(level):
        first, second = mlp(4, 4), mlp()
        optimizers = [sgd(first), sgd(second)]
        (second(first(torch.ones(2, 4))).sum() * SMALL).backward()
        scaler = record_of(optimizers[0]).configuration.scalers[0]
        assert scaler is record_of(optimizers[1]).configuration.scalers[0]
        assert scaler._unskipped == 1 or scaler.is_static_one()


def test_optimizers_and_models_that_the_script_drops_are_freed(level):
    import gc
    import weakref

    with forced(level):
        for _ in range(2):
            model = mlp()
            optimizer = sgd(model)
            train(model, model, optimizer)
            alive = [weakref.ref(model), weakref.ref(optimizer)]
            del model, optimizer
            gc.collect()
            assert [each() for each in alive] == [None, None]


class SharpnessAware(torch.optim.Optimizer):
    """As public code has it: an optimizer around another one, with the same groups."""

    def __init__(self, params, **options):
        super().__init__(params, options)
        self.inner = torch.optim.SGD(self.param_groups, **options)
        self.param_groups = self.inner.param_groups

    @torch.no_grad()
    def step(self, closure):
        closure = torch.enable_grad()(closure)
        closure()
        params = [param for group in self.param_groups for param in group["params"]]
        before = [param.clone() for param in params]
        for param in params:
            param.add_(param.grad, alpha=0.5)
        self.zero_grad()
        closure()
        for param, value in zip(params, before):
            param.copy_(value)
        self.inner.step()


def test_an_optimizer_around_another_one(level):
    def run(hand):
        model = mlp()
        optimizer = SharpnessAware(model.parameters(), lr=0.5)
        begin(hand, model, [optimizer, optimizer.inner])

        def closure():
            optimizer.zero_grad()
            loss = model(torch.ones(2, 4)).pow(2).sum() * 2.0**-14
            backward(hand, loss, optimizer)
            return loss

        for _ in range(2):
            optimizer.step(closure)
        return weights(model)

    assert_equal(*both(level, run))


class Layer(nn.Linear):
    """A layer that scripts call by its method, as in the forward-forward algorithm."""

    def forward(self, inputs):
        return functional.linear(inputs, self.weight, self.bias).relu()


def test_a_layer_whose_forward_method_is_called_directly(level):
    def run(hand):
        layer = Layer(4, 6)
        optimizer = begin(hand, layer, sgd(layer))
        return train(layer, lambda inputs: layer.forward(inputs), optimizer, hand)

    assert_equal(*both(level, run))
    assert not hasattr(Layer.forward, "__wrapped__")


class Autoencoder(nn.Module):
    """A model with a method that scripts call besides ``forward``."""

    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = nn.Linear(4, 2), nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 4))

    def forward(self, inputs):
        return self.decode(self.encoder(inputs))

    def decode(self, code):
        return self.decoder(code).sigmoid()


def test_another_method_of_a_prepared_model_takes_float32_inputs_and_returns_float32(level):
    with forced(level):
        model = Autoencoder()
        optimizer = sgd(model)
        (model(torch.ones(2, 4)).sum() * SMALL).backward()
        optimizer.step()
        for each in (model, copy.deepcopy(model)):
            decoded = each.decode(torch.ones(3, 2))
            wide = (
                copy.deepcopy(each).float().decode(torch.ones(3, 2)) if level in ("O0", "O2", "O3", "O5") else decoded
            )
            assert decoded.dtype is (torch.float32 if level not in HALF_OUTPUTS else HALF_OUTPUTS[level])
            assert torch.allclose(decoded.float(), wide.float(), atol=1e-2)


#: The dtypes of what functions return at levels that cast them.
HALF_OUTPUTS = {"O1": torch.float16, "O4": torch.bfloat16}


@pytest.mark.filterwarnings("ignore:.*torch.jit")
@pytest.mark.parametrize("scripted_at", ["O0", "O1"])  # TorchScript keeps the half dtype of its first calls
def test_a_model_that_is_scripted_after_its_optimizer_is_made(scripted_at):
    def run(hand):
        layer = Layer(4, 6)
        optimizer = sgd(layer)
        scripted = torch.jit.script(layer)
        begin(hand, scripted, optimizer)
        return train(scripted, scripted, optimizer, hand, steps=1)

    assert_equal(*both(scripted_at, run))


def test_a_tensor_without_a_module_beside_a_model(level):
    """As the temperature of soft actor-critic: passes of its own, and one that reaches the model too."""

    def run(hand):
        model, log_alpha = mlp(), torch.zeros(1, requires_grad=True)
        optimizers = begin(hand, model, [sgd(model), torch.optim.SGD([log_alpha], lr=0.5)])
        for _ in range(3):
            for each in optimizers:
                each.zero_grad()
            output = model(torch.ones(2, 4)).mean() * SMALL
            backward(hand, output + log_alpha.exp().sum() * SMALL, optimizers)
            for each in optimizers:
                each.step()
            optimizers[1].zero_grad()
            backward(hand, (log_alpha * output.detach()).sum(), optimizers[1])
            optimizers[1].step()
        return weights(model) + [log_alpha.detach().clone()]

    assert_equal(*both(level, run))


class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, inputs, mask=None):
        return self.layer(inputs)


@pytest.mark.parametrize("level", ["O0", "O2", "O4"])
def test_inspect_reads_the_args_of_forward_as_of_the_script_unchanged(level):
    def read(model):
        return inspect.getfullargspec(model.forward).args, str(inspect.signature(model.forward))

    expected = read(Masked())
    assert expected == (["self", "inputs", "mask"], "(inputs, mask=None)")
    with forced(level):
        model = Masked()
        optimizer = sgd(model)
        assert read(model) == expected  # while the calls of its class are watched
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        assert read(model) == expected  # and when it is prepared
