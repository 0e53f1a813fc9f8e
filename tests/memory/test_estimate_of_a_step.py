"""``estimate``: a step on fake tensors, against what ``memory_report`` measures of a real one."""

import pytest
import torch
import torch.nn.functional as F
from helpers import loops, networks
from helpers.fake_devices import needs_fake_steps
from helpers.networks import each_setting, initialize, session_of
from torch.utils.checkpoint import checkpoint

import ampcompat
from ampcompat.diagnostics.estimate import assumed_values
from ampcompat.errors import AmpError, AmpTypeError, AmpValueError
from ampcompat.support.torch_compat import fake_tensors, features


def adam_of(params):
    return torch.optim.Adam(params)


def loss_of(model):
    x, classes = torch.randn(64, 6), torch.zeros(64, dtype=torch.long)
    return F.cross_entropy(model(x), classes)


def measured(setting, model, loss, accumulate=1):
    """Return the ``MemoryReport`` of a real step."""
    with session_of(setting):
        optimizer = adam_of(model.parameters())
        initialize(setting, model, optimizer)

        def step():
            for _ in range(accumulate):
                loops.backward(loss(model) / accumulate, optimizer)
            optimizer.step()
            optimizer.zero_grad()

        return ampcompat.memory_report(model, optimizer, step)


def predicted(setting, model, loss, **options):
    """Return the predicted ``MemoryReport`` of the step."""
    dtypes = setting.pair if setting.pair is networks.STAND_IN else None
    options.update(device="cpu", dtypes=dtypes, loss=loss)
    return ampcompat.estimate(model, adam_of, setting.level, **options)


def assert_alike(found, report):
    assert found.notes == []
    assert found.peak_total == pytest.approx(report.peak_total, rel=0.002, abs=64)
    for kind in ("parameters", "masters", "optimizer", "gradients", "activations", "temporaries"):
        expected = getattr(report.peak_by_kind, kind)
        assert getattr(found.peak_by_kind, kind) == pytest.approx(expected, rel=0.02, abs=256), kind


@needs_fake_steps
def test_a_model_of_billions_of_params_takes_hardly_more_operations_than_a_small_one(monkeypatch):
    run, counts = assumed_values.AssumedValues.__torch_dispatch__, []

    def counted(mode, *args):
        counts[-1] += 1
        return run(mode, *args)

    monkeypatch.setattr(assumed_values.AssumedValues, "__torch_dispatch__", counted)
    for width in (64, 1 << 15):
        counts.append(0)
        model = torch.nn.Sequential(*[torch.nn.Linear(width, width, device="meta") for _ in range(2)])
        ampcompat.estimate(
            model, torch.optim.Adam, "O2", loss=lambda each, width=width: each(torch.ones(1, width)).sum()
        )
    assert 100 < counts[1] < 1.2 * counts[0]  # large weights are grouped differently


@needs_fake_steps
@each_setting
def test_a_prediction_is_what_is_measured_at_any_level(setting):
    if setting.backend == "patched" and setting.pair is not networks.STAND_IN:
        pytest.skip("estimate takes the backend that torch has")
    model = networks.make_network(seed=0)
    found = predicted(setting, model, loss_of)
    assert {param.dtype for param in model.parameters()} == {torch.float32}
    assert_alike(found, measured(setting, networks.make_network(setting), loss_of))


class Blocks(torch.nn.Module):
    """Blocks that may be checkpointed, and an output layer that may share their first weight."""

    def __init__(self, reentrant=None, tied=False):
        super().__init__()
        self.reentrant = reentrant
        self.blocks = torch.nn.ModuleList(
            torch.nn.Sequential(
                torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.Dropout(0.1), torch.nn.Linear(64, 32)
            )
            for _ in range(4)
        )
        self.head = torch.nn.Linear(32, 64, bias=False)
        if tied:
            self.head.weight = self.blocks[0][0].weight

    def forward(self, x):
        x = x.requires_grad_()
        for block in self.blocks:
            run = (
                block
                if self.reentrant is None
                else lambda x, block=block: checkpoint(block, x, use_reentrant=self.reentrant)
            )
            x = x + run(x)
        return self.head(x)


def block_loss(model):
    return model(torch.randn(48, 32)).float().pow(2).mean()


LEVELS = [networks.Setting(level, "auto", pair) for level, pair in (("O1", networks.HALF), ("O2", networks.HALF))]


@needs_fake_steps
@pytest.mark.parametrize(
    "setting, options, accumulate",
    [
        (LEVELS[0], {"reentrant": False}, 1),
        (LEVELS[1], {"reentrant": False}, 2),
        (LEVELS[0], {"reentrant": True}, 2),
        (LEVELS[1], {"reentrant": True, "tied": True}, 1),
        (LEVELS[0], {"tied": True}, 3),
        (networks.Setting("O5", "auto", networks.BFLOAT16), {"tied": True}, 1),
    ],
    ids=str,
)
def test_checkpoints_tied_weights_and_accumulation_are_those_of_the_step(setting, options, accumulate):
    found = predicted(setting, Blocks(**options), block_loss, accumulate=accumulate)
    assert_alike(found, measured(setting, Blocks(**options), block_loss, accumulate))


@needs_fake_steps
def test_a_model_on_meta_takes_no_memory_and_a_real_one_is_left_alone():
    with torch.device("meta"):
        model = torch.nn.Sequential(*[torch.nn.Linear(30000, 30000, bias=False) for _ in range(2)])
    found = ampcompat.estimate(model, adam_of, "O2", loss=lambda model: model(torch.randn(8, 30000)).float().sum())
    kinds = found.peak_by_kind
    assert kinds.parameters + kinds.masters + kinds.optimizer == pytest.approx(14 * 1.8e9, rel=1e-6)
    assert found.peak_total > 18 * 1.8e9
    assert {param.device.type for param in model.parameters()} == {"meta"}
    small = networks.make_network()
    before, state = networks.weights_of(small), torch.get_rng_state()
    ampcompat.estimate(small, adam_of, "O2", loss=loss_of)
    assert networks.differing(before, networks.weights_of(small)) == []
    assert torch.equal(state, torch.get_rng_state())


@needs_fake_steps
@each_setting
def test_a_prediction_within_a_session_leaves_its_training_alone(setting):
    def trained(estimates):
        with session_of(setting):
            model = networks.make_network(setting)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.125)
            initialize(setting, model, optimizer, loss_scale=8.0)
            for _ in range(2):
                networks.train_step(model, optimizer, networks.make_batch(setting))
                if estimates:
                    ampcompat.estimate(networks.make_network(), adam_of, "O1", loss=loss_of)
            return networks.weights_of(model)

    assert networks.differing(trained(False), trained(True)) == []


@needs_fake_steps
def test_a_gpu_has_no_float32_copies_of_emulated_half_and_rounds_allocations(monkeypatch):
    monkeypatch.setenv("AMPCOMPAT_HALF_MATH", "on")
    layers = [torch.nn.Conv2d(3, 16, 3), torch.nn.BatchNorm2d(16), torch.nn.ReLU(), torch.nn.Conv2d(16, 16, 3)]
    model = torch.nn.Sequential(*layers, torch.nn.AdaptiveAvgPool2d(1))

    def loss(model):
        return model(torch.randn(8, 3, 64, 64)).float().pow(2).mean()

    on_cpu, on_gpu = (ampcompat.estimate(model, adam_of, "O2", loss=loss, device=each) for each in ("cpu", "cuda"))
    assert on_gpu.peak_total < on_cpu.peak_total
    assert all(getattr(on_gpu.peak_by_kind, kind) % 512 == 0 for kind in ("parameters", "masters", "activations"))
    assert "on a GPU" in str(on_gpu) and "on this CPU" in str(on_cpu)


def on_values(model):
    output = model(torch.randn(8, 6))
    return output[output > 0].mean()


def of_another_width(model):
    return model(torch.randn(2, 3)).sum()


def in_numpy(model):
    return model(torch.randn(8, 6)).mean() * float(model(torch.randn(8, 6)).detach().numpy().mean())


@needs_fake_steps
@pytest.mark.parametrize(
    "optimizer, loss, error, message",
    [
        (adam_of, on_values, AmpError, "memory of this step cannot be predicted.*aten.index.Tensor"),
        (adam_of, in_numpy, AmpError, "memory of this step cannot be predicted.*numpy"),
        (torch.optim.LBFGS, loss_of, AmpError, "LBFGS.step needs a closure"),
        (adam_of, of_another_width, RuntimeError, "2, 3.*6, 8"),
    ],
    ids=["index", "numpy", "closure", "an error of the loss itself"],
)
def test_a_step_that_cannot_be_predicted_says_why(optimizer, loss, error, message):
    with pytest.raises(error, match=message):
        ampcompat.estimate(networks.make_network(), optimizer, "O0", loss=loss)


@needs_fake_steps
def test_a_custom_operation_without_a_fake_kernel_is_named():
    @torch.library.custom_op("ampcompat_tests::doubled", mutates_args=())
    def doubled(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    def loss(model):
        return torch.ops.ampcompat_tests.doubled(model(torch.randn(8, 6))).sum()

    with pytest.raises(AmpError, match="ampcompat_tests.doubled.*no fake kernel"):
        ampcompat.estimate(networks.make_network(), adam_of, "O0", loss=loss)


@needs_fake_steps
def test_values_that_are_read_are_those_of_a_good_step():
    seen = {}

    def loss(model):
        output = model(torch.randn(8, 6))
        seen.update(
            value=output.mean().item(),
            is_nan=bool(torch.isnan(output).any()),
            is_finite=bool(torch.isfinite(output).all()),
            equal=torch.equal(output, output * 2),
            count=int((output > 0).sum()),
        )
        return output.sum()

    found = ampcompat.estimate(networks.make_network(), adam_of, "O2", loss=loss)
    assert seen == {"value": 1.0, "is_nan": False, "is_finite": True, "equal": True, "count": 1}
    assert found.peak_by_kind.activations > 0
    (note,) = found.notes
    assert "integers" in note


@needs_fake_steps
def test_integers_are_known_until_unknown_ones_are_written_to_them():
    data, seen = torch.arange(3 * assumed_values.LARGEST), {}

    def loss(model):
        output = model(torch.randn(8, 6))
        ids, others, table = torch.arange(10, 15), torch.tensor([[7, 8], [9, 10]]), torch.zeros(5).long()
        row = others[1]
        row[0] = output.argmax()
        torch.add(output.argmax(), ids, out=table)
        ids.mul_(2)[1:3] += 100
        cut = torch.stack([data[place : place + 2] for place in ids])
        seen.update(
            ids=ids.tolist(),
            shape=list(torch.ones(int(cut[1, 1]), int((ids > 28).sum())).shape),
            unknown=[int(row[1]), int(others[0, 0]), int(table[2])],
        )
        return output.sum()

    found = ampcompat.estimate(networks.make_network(), adam_of, "O2", loss=loss)
    assert seen == {"ids": [20, 122, 124, 26, 28], "shape": [123, 2], "unknown": [1, 1, 1]}
    assert "integers" in found.notes[0]


@needs_fake_steps
def test_a_batch_that_is_cut_out_of_the_data_in_python_runs_no_fake_operation_per_sample(monkeypatch):
    kind, counts, data = type(fake_tensors.new_mode()), [], torch.arange(1000)
    run = kind.__torch_dispatch__

    def counted(mode, *args, **kwargs):
        counts[-1] += 1
        return run(mode, *args, **kwargs)

    monkeypatch.setattr(kind, "__torch_dispatch__", counted)
    for batch in (8, 8, 64, 64):  # torch caches what it computes for a shape

        def loss(model, batch=batch):
            places = torch.randint(900, (batch,))
            inputs = torch.stack([data[place : place + 6] for place in places])
            targets = torch.stack([data[place + 1 : place + 1 + 6] for place in places])
            return (model(inputs.float()).mean(1) - targets.float().mean(1)).sum()

        counts.append(0)
        ampcompat.estimate(networks.make_network(), adam_of, "O0", loss=loss)
    assert counts[1] == counts[3]


@needs_fake_steps
def test_a_model_that_cannot_be_copied_is_reported():
    class Locked(torch.nn.Linear):
        def __deepcopy__(self, memo):
            raise TypeError("it has a lock")

    with pytest.raises(AmpError, match="cannot be copied.*it has a lock"):
        ampcompat.estimate(Locked(2, 2), adam_of, "O1", loss=lambda model: model(torch.randn(2, 2)).sum())


@pytest.mark.parametrize(
    "options, kind, told",
    [
        ({"loss": 3}, AmpTypeError, "expected loss to be a function"),
        ({"loss": loss_of, "level": "02"}, AmpError, "O, not the digit|letter O"),
        ({"loss": loss_of, "device": "tpu"}, AmpValueError, 'device must be "cpu" or "cuda"'),
        ({"loss": loss_of, "accumulate": 0}, AmpValueError, "accumulate must be"),
    ],
    ids=["loss", "level", "device", "accumulate"],
)
def test_invalid_arguments_say_what_was_expected(options, kind, told):
    with pytest.raises(kind, match=told):
        ampcompat.estimate(networks.make_network(), adam_of, **options)


def test_an_older_torch_is_told_in_one_sentence(monkeypatch):
    monkeypatch.setattr(features, "version", lambda: "2.1.0")
    with pytest.raises(AmpError, match="need torch 2.5 or later; this is torch 2.1.0"):
        ampcompat.estimate(networks.make_network(), adam_of, "O1", loss=loss_of)
