"""mmcv 1.7's own runner, unchanged, with ampcompat's hooks: as the bare loop does, bit for bit."""

import logging

import pytest
import torch
from helpers import client_modules
from helpers.networks import differing, session_of, settings_at, weights_of
from helpers.precision import HIGH, LOW
from torch.utils.data import DataLoader

import ampcompat
from ampcompat import mmcv

runner_module = client_modules.imported("mmcv.runner", "mmcv")
parallel_module = client_modules.imported("mmcv.parallel", "mmcv")

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*torch.cuda.amp.*:FutureWarning",  # mmcv's own hooks, which some tests compare with
    "ignore:.*pin_memory.*:UserWarning",
)
LOGGER = logging.getLogger("mmcv_runner")
TOTAL = 10


def net_of(decorators):
    """Return the class of a model as mmcv's runner wants it, with the decorators of a module."""

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.fp16_enabled = False
            self.body = torch.nn.Linear(6, 8)
            self.head = torch.nn.Linear(8, 1)
            self.seen = []

        @decorators.auto_fp16(apply_to=("x",))
        def forward(self, x, y):
            """Return the loss."""
            hidden = torch.tanh(self.body(x))
            self.seen.append(hidden.dtype)
            return self.loss(self.head(hidden), y)

        @decorators.force_fp32(apply_to=("prediction",))
        def loss(self, prediction, y):
            """Return the mean square."""
            return (prediction - y).pow(2).mean()

        def train_step(self, batch, optimizer, **kwargs):
            """Return what a runner keeps as ``outputs``."""
            loss = self(batch["x"], batch["y"])
            return {"loss": loss, "num_samples": len(batch["x"]), "log_vars": {"loss": loss.item()}}

    return Net


#: The same under ours and under mmcv's own, as a model of mmdet's is.
Net, OwnNet = map(net_of, (mmcv, runner_module))


def batches(high):
    generator = torch.Generator().manual_seed(1)
    data = torch.randn(TOTAL * 4, 7, generator=generator).to(high)
    return DataLoader([{"x": row[:6], "y": row[6:]} for row in data], batch_size=4)


def runner_of(tmp_path, optimizer_config, high, net=Net, wrap=None, checkpoints=5, meta=None, **options):
    """Return mmcv's runner, with a learning rate that changes, checkpoints and a log."""
    by_epoch = "max_epochs" in options
    model = net().to(high)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    kind = runner_module.EpochBasedRunner if by_epoch else runner_module.IterBasedRunner
    options.setdefault("max_iters", None if by_epoch else TOTAL)
    runner = kind(
        wrap(model) if wrap else model, optimizer=optimizer, work_dir=str(tmp_path), logger=LOGGER, meta=meta, **options
    )
    runner.register_training_hooks(
        lr_config=dict(policy="step", step=[6], by_epoch=False),
        optimizer_config=optimizer_config,
        checkpoint_config=dict(interval=checkpoints, by_epoch=by_epoch, create_symlink=False),
        log_config=dict(interval=1, hooks=[dict(type="TextLoggerHook")]),
    )
    return runner


def bare_run(hook, high):
    """Return the weights of the same training without mmcv."""
    model = Net().to(high)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    runner = type("Runner", (), {})()
    runner.model, runner.optimizer, runner.meta, runner.max_iters = model, optimizer, None, TOTAL
    hook.before_run(runner)
    for runner.iter, batch in enumerate(batches(high)):
        optimizer.param_groups[0]["lr"] = 0.1 if runner.iter < 6 else 0.1 * 0.1
        runner.outputs = model.train_step(batch, optimizer)
        hook.after_train_iter(runner)
    return weights_of(model), model.seen


HOOKS = {
    "fp16": lambda level: mmcv.Fp16OptimizerHook(loss_scale="dynamic", opt_level=level),
    "cumulative": lambda level: mmcv.GradientCumulativeFp16OptimizerHook(
        cumulative_iters=4, loss_scale={"init_scale": 256.0}, grad_clip={"max_norm": 0.5}, opt_level=level
    ),
}


@pytest.mark.parametrize("kind", sorted(HOOKS))
@settings_at("O0", "O1", "O2", "O4", "O5")
def test_runner_trains_as_the_bare_loop_does(setting, kind, tmp_path):
    with session_of(setting):
        expected, seen = bare_run(HOOKS[kind](setting.level), setting.high)
    with session_of(setting):
        runner = runner_of(tmp_path, HOOKS[kind](setting.level), setting.high)
        runner.run([batches(setting.high)], [("train", 1)])
        assert differing(weights_of(runner.model), expected) == []
        assert runner.model.seen == seen == [setting.high if setting.level == "O0" else setting.low] * TOTAL


@settings_at("O1", "O2")
def test_runner_resumes_from_its_checkpoint_bit_for_bit(setting, tmp_path):
    def runner_with(**options):
        hook = mmcv.GradientCumulativeFp16OptimizerHook(
            cumulative_iters=5, loss_scale={"init_scale": 256.0, "growth_interval": 3}, opt_level=setting.level
        )
        return runner_of(tmp_path, hook, setting.high, checkpoints=1, max_epochs=3, **options)

    with session_of(setting):
        runner = runner_with()
        runner.run([batches(setting.high)], [("train", 1)])
        expected, scale = weights_of(runner.model), runner.meta["fp16"]["loss_scaler"]
    path = str(tmp_path / "epoch_2.pth")
    checkpoint = torch.load(path)
    assert checkpoint["meta"]["fp16"]["loss_scaler"]["cur_iter"] == 4 and scale["scale"] == 1024.0
    assert {value.dtype for value in checkpoint["state_dict"].values()} == {setting.high}
    with session_of(setting):
        resumed = runner_with()
        resumed.resume(path, map_location="cpu")
        resumed.run([batches(setting.high)], [("train", 1)])
        assert differing(weights_of(resumed.model), expected) == []
        assert resumed.meta["fp16"]["loss_scaler"] == scale


def test_run_that_is_resumed_within_a_group_divides_by_what_is_left(tmp_path, log):
    runner = runner_of(tmp_path, HOOKS["cumulative"]("O1"), HIGH, checkpoints=6)
    runner.run([batches(HIGH)], [("train", 1)])
    ampcompat.reset()
    runner = runner_of(tmp_path, HOOKS["cumulative"]("O1"), HIGH)
    path = str(tmp_path / "iter_6.pth")
    runner.resume(path, map_location="cpu")
    runner.meta = torch.load(path)["meta"]  # mmcv's iteration-based runner leaves it out
    log.clear()
    runner.run([batches(HIGH)], [("train", 1)])
    # And it saves the number of the iteration that it is in, so that this one comes again.
    assert "Iteration 5 is in the middle of 4" in log.text and "divided by 3" in log.text
    assert runner.meta["fp16"]["loss_scaler"]["cur_iter"] == 3


def test_accumulation_in_float32_equals_mmcvs_own(tmp_path):
    ends = []
    for hooks in (runner_module, mmcv):
        runner = runner_of(tmp_path, hooks.GradientCumulativeOptimizerHook(cumulative_iters=4), torch.float32)
        runner.run([batches(torch.float32)], [("train", 1)])
        ends.append(weights_of(runner.model))
    assert differing(*ends) == []


def test_epochs_a_wrapper_and_the_log(tmp_path, log):
    hook = mmcv.Fp16OptimizerHook(loss_scale=512.0, grad_clip=dict(max_norm=1.0))
    wrap = lambda model: parallel_module.MMDataParallel(model, device_ids=[-1])  # noqa: E731
    runner = runner_of(tmp_path, hook, HIGH, wrap=wrap, max_epochs=2, meta={"seed": 3})
    runner.run([batches(HIGH)], [("train", 1)])
    assert runner.model.module.seen == [LOW] * TOTAL * 2
    assert "grad_norm: " in log.text
    assert runner.meta["seed"] == 3 and runner.meta["fp16"]["loss_scaler"]["scale"] == 512.0


# -- by name -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def installed():
    undo = mmcv.install()
    yield
    undo()


def test_installed_hooks_are_found_by_mmcvs_names(installed, tmp_path):
    config = dict(type="GradientCumulativeFp16OptimizerHook", cumulative_iters=4, loss_scale=dict(init_scale=256.0))
    runner = runner_of(tmp_path, dict(config, grad_clip=dict(max_norm=0.5)), HIGH)
    runner.run([batches(HIGH)], [("train", 1)])
    assert isinstance(runner.hooks[1], mmcv.GradientCumulativeFp16OptimizerHook)
    ampcompat.reset()
    assert differing(weights_of(runner.model), bare_run(HOOKS["cumulative"]("O1"), HIGH)[0]) == []


def test_methods_that_mmcv_decorated_run_on_any_device_once_installed(installed, tmp_path):
    runner = runner_of(tmp_path, dict(type="Fp16OptimizerHook", loss_scale="dynamic"), HIGH, net=OwnNet)
    runner.run([batches(HIGH)], [("train", 1)])
    assert runner.model.seen == [LOW] * TOTAL
    ampcompat.reset()
    assert differing(weights_of(runner.model), bare_run(HOOKS["fp16"]("O1"), HIGH)[0]) == []


def test_methods_that_mmcv_decorated_are_plain_at_o0(installed, tmp_path):
    with ampcompat.session("O0", verbosity=0):
        model = OwnNet()
        model.fp16_enabled = True
        assert model(torch.ones(1, 6), torch.ones(1)).dtype is torch.float32 and model.seen == [torch.float32]


def test_installation_is_undone_without_a_trace():
    places = [runner_module, runner_module.fp16_utils, runner_module.hooks, runner_module.hooks.optimizer]
    before = [dict(vars(place)) for place in places], dict(runner_module.HOOKS.module_dict)
    undo = mmcv.install()
    assert runner_module.Fp16OptimizerHook is mmcv.Fp16OptimizerHook
    assert runner_module.auto_fp16 is mmcv.auto_fp16
    undo()
    assert ([dict(vars(place)) for place in places], dict(runner_module.HOOKS.module_dict)) == before


def test_a_config_installs_by_an_import():
    import ampcompat.mmcv.autoinstall

    assert runner_module.HOOKS.get("Fp16OptimizerHook") is mmcv.Fp16OptimizerHook
    assert ampcompat.mmcv.autoinstall.undo() is None
    assert runner_module.HOOKS.get("Fp16OptimizerHook") is not mmcv.Fp16OptimizerHook


def test_hooks_are_mmcvs_kind_of_hook():
    assert issubclass(mmcv.OptimizerHook, runner_module.Hook)
    assert mmcv.Fp16OptimizerHook().get_triggered_stages() == [
        "before_run",
        "after_train_iter",
    ]
