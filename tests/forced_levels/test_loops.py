"""Loops of several models, optimizers, closures and wrappers under a forced level, against ``amp`` by hand."""

import copy
import functools
import gc
import inspect
import weakref

import pytest
import torch
from amp_by_hand import SMALL, assert_equal, backward, begin, both
from helpers import compilers, sharding
from helpers.copies import saved_and_loaded
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

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


def train(model, called, optimizer, hand=None, steps=2):
    for _ in range(steps):
        optimizer.zero_grad()
        backward(hand, called(torch.ones(2, 4)).sum() * SMALL, optimizer)
        optimizer.step()
    return weights(model)


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


def two_optimizers_of_one_model(hand):
    model = mlp()
    optimizers = begin(hand, model, [sgd(model[0]), sgd(model[2])])
    for _ in range(2):
        for each in optimizers:
            each.zero_grad()
        backward(hand, model(torch.ones(2, 4)).sum() * SMALL, optimizers)
        for each in optimizers:
            each.step()
    return weights(model)


def gradients_of_several_passes(hand):
    model = mlp()
    optimizer = begin(hand, model, sgd(model))
    for index in range(4):
        backward(hand, model(torch.full((2, 4), index + 1.0)).sum() * SMALL, optimizer)
        if index % 2:
            nn.utils.clip_grad_norm_(model.parameters(), 0.01)
            optimizer.step()
            model.zero_grad()
    return weights(model)


def stepped_by_closures(hand, model, optimizer):
    def closure():
        optimizer.zero_grad()
        loss = model(torch.ones(2, 4)).pow(2).sum() * SMALL
        backward(hand, loss, optimizer)
        return loss

    for _ in range(2):
        optimizer.step(closure)
    return weights(model)


def closures(hand, make):
    model = mlp()
    return stepped_by_closures(hand, model, begin(hand, model, make(model)))


class Checkpointed(nn.Module):
    def __init__(self, use_reentrant):
        super().__init__()
        self.body, self.head, self.use_reentrant = mlp(4, 4), nn.Linear(4, 1), use_reentrant

    def forward(self, inputs):
        return self.head(checkpoint(self.body, inputs, use_reentrant=self.use_reentrant))


def gradient_checkpoints(hand, use_reentrant):
    model = Checkpointed(use_reentrant)
    optimizer = begin(hand, model, sgd(model))
    return train(model, lambda inputs: model(inputs.requires_grad_()), optimizer, hand)


def data_parallel_models(hand):
    model = mlp()
    optimizer = begin(hand, model, sgd(model))
    return train(model, nn.DataParallel(model), optimizer, hand)


def evaluation_deep_copies_and_whole_models_that_are_saved(hand):
    model = mlp()
    optimizer = begin(hand, model, sgd(model))
    train(model, model, optimizer, hand)
    with torch.no_grad():
        return [each.eval()(torch.ones(2, 4)) for each in (model, copy.deepcopy(model), saved_and_loaded(model))]


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


def an_optimizer_around_another_one(hand):
    model = mlp()
    optimizer = SharpnessAware(model.parameters(), lr=0.5)
    begin(hand, model, [optimizer, optimizer.inner])
    return stepped_by_closures(hand, model, optimizer)


class Layer(nn.Linear):
    """A layer that scripts call by its method, as in the forward-forward algorithm."""

    def forward(self, inputs):
        return functional.linear(inputs, self.weight, self.bias).relu()


def a_layer_whose_forward_method_is_called_directly(hand):
    layer = Layer(4, 6)
    optimizer = begin(hand, layer, sgd(layer))
    return train(layer, lambda inputs: layer.forward(inputs), optimizer, hand)


def a_tensor_without_a_module_beside_a_model(hand):
    """As the temperature of soft actor-critic: passes of its own, and one that reaches the model too."""
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


def encoder_and_decoder_of_one_optimizer(hand):
    encoder, decoder = nn.Linear(4, 3), nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 1))
    optimizer = begin(hand, [encoder, decoder], sgd(encoder, decoder))
    return train(nn.ModuleList([encoder, decoder]), lambda inputs: decoder(encoder(inputs)), optimizer, hand)


def lbfgs(model):
    return torch.optim.LBFGS(model.parameters(), max_iter=3)


#: Each returns tensors of a training: with ``amp`` written in at the level ``hand``, or without where it is None.
LOOPS = [
    adversarial,
    two_optimizers_of_one_model,
    gradients_of_several_passes,
    functools.partial(closures, make=lbfgs),
    functools.partial(closures, make=sgd),
    functools.partial(gradient_checkpoints, use_reentrant=True),
    functools.partial(gradient_checkpoints, use_reentrant=False),
    data_parallel_models,
    evaluation_deep_copies_and_whole_models_that_are_saved,
    an_optimizer_around_another_one,
    a_layer_whose_forward_method_is_called_directly,
    a_tensor_without_a_module_beside_a_model,
    encoder_and_decoder_of_one_optimizer,
]


@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: getattr(loop, "func", loop).__name__)
def test_a_loop_gives_what_it_gives_with_amp_written_in_bit_for_bit(level, loop):
    assert_equal(*both(level, loop))
    assert not hasattr(Layer.forward, "__wrapped__")


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


@pytest.fixture
def shard(group):
    """The function ``fully_shard``, over one rank."""
    if sharding.why_not():
        pytest.skip(sharding.why_not())
    from torch.distributed import fsdp
    from torch.distributed.device_mesh import init_device_mesh

    return functools.partial(fsdp.fully_shard, mesh=init_device_mesh("cpu", (1,)))


def test_sharded_models(level, shard):
    with forced(level):
        model = shard(mlp())
        optimizer = sgd(model)
        before = [each.full_tensor().clone() for each in model.parameters()]
        train(model, model, optimizer)
        assert not any(torch.equal(one.full_tensor(), other) for one, other in zip(model.parameters(), before))


def test_sharded_models_with_bfloat16_weights_train_as_unsharded_ones_at_o5(shard):
    with forced("O5"):
        plain = mlp().bfloat16()
        model = shard(copy.deepcopy(plain))
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
    with forced(level):
        for _ in range(2):
            model = mlp()
            optimizer = sgd(model)
            train(model, model, optimizer)
            alive = [weakref.ref(model), weakref.ref(optimizer)]
            del model, optimizer
            gc.collect()
            assert [each() for each in alive] == [None, None]


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
