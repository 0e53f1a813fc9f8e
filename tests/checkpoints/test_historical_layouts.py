"""Checkpoints of Apex, of libraries that used it, and of torch's GradScaler load, and training continues."""

import copy

import pytest
import torch
from helpers.networks import differing
from helpers.precision import HIGH, low_of
from saved_runs import SAVED_AT, STEPS, Run, read, uninterrupted, written

from ampcompat import amp
from ampcompat.errors import AmpError

MASTERING = ("O2", "O5")


def saved(level, name="Adam"):
    return read(uninterrupted(level, name)[0])


# -- Apex's documented layout ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("each", MASTERING)
def test_a_model_that_was_saved_in_half_gives_masters_of_its_values(each):
    checkpoint = saved(each)
    half = {
        name: value.to(low_of(each)) if value.is_floating_point() else value
        for name, value in checkpoint["model"].items()
    }
    run = Run(each, "Adam", seed=7).initialize()
    run.model.load_state_dict(half)
    for (name, _), master in zip(run.model.named_parameters(), amp.master_params(run.optimizer)):
        assert master.dtype is HIGH
        assert torch.equal(master.detach(), half[name].to(HIGH))


def as_old_torch_wrote(state_dict):
    """Return an optimizer's state dict with addresses for params and ints for steps, as before torch 1.6 and 1.12."""
    addresses = {key: 139871234567000 + 72 * key for key in state_dict["state"]}
    state = {addresses[key]: dict(value, step=int(value["step"])) for key, value in state_dict["state"].items()}
    groups = [
        {name: value for name, value in group.items() if name in ("lr", "betas", "eps", "weight_decay", "amsgrad")}
        for group in state_dict["param_groups"]
    ]
    for group, now in zip(groups, state_dict["param_groups"]):
        group["params"] = [addresses[key] for key in now["params"]]
    return {"state": state, "param_groups": groups}


NUMBERS_PARAMS = set(torch.optim.SGD([torch.zeros(1)], lr=0.1).state_dict()["param_groups"][0]["params"]) == {0}


@pytest.mark.skipif(not NUMBERS_PARAMS, reason="this torch writes addresses for params itself")
def test_an_optimizer_that_old_torch_wrote_goes_on_to_the_bit(level):
    checkpoint = saved(level)
    checkpoint["optimizer"] = as_old_torch_wrote(checkpoint["optimizer"])
    run = Run(level, "Adam", seed=7).initialize()
    run.load(checkpoint)
    losses = run.train(SAVED_AT, STEPS)
    _, expected, expected_losses = uninterrupted(level, "Adam")
    assert losses == expected_losses[SAVED_AT:]
    assert [name for name in differing(run.portrait(), expected) if not name.startswith("step")] == []


# -- NVIDIA's BERT -----------------------------------------------------------------------------------------------------


def bert_checkpoint(run):
    """Save as NVIDIA's BERT scripts do."""
    return {
        "model": run.model.state_dict(),
        "optimizer": run.optimizer.state_dict(),
        "master params": list(amp.master_params(run.optimizer)),
    }


def load_as_bert(run, checkpoint):
    """Load as they do: the model before initialize, everything else after."""
    run.model.load_state_dict(checkpoint["model"])
    run.initialize()
    run.optimizer.load_state_dict(checkpoint["optimizer"])
    run.optimizer._lazy_init_maybe_master_weights()
    run.optimizer._amp_stash.lazy_init_called = True
    run.optimizer.load_state_dict(checkpoint["optimizer"])
    for param, saved_param in zip(amp.master_params(run.optimizer), checkpoint["master params"]):
        param.data.copy_(saved_param.data)


@pytest.mark.parametrize("half_model", [False, True], ids=["float32 model", "half model"])
def test_the_layout_of_bert_goes_on_to_the_bit(level, half_model):
    run = Run(level, "Adam").initialize()
    run.train(0, SAVED_AT)
    checkpoint = read(written(bert_checkpoint(run)))
    if half_model and run.optimizer._amp_stash.all_fp16_params:
        for name, param in run.model.named_parameters():
            checkpoint["model"][name] = param.detach().clone()
    scalers = amp.state_dict()
    losses = run.train(SAVED_AT, STEPS)
    resumed = Run(level, "Adam", seed=7)
    load_as_bert(resumed, checkpoint)
    amp.load_state_dict(scalers)  # BERT starts them afresh; here the bits are to be compared
    assert resumed.train(SAVED_AT, STEPS) == losses
    assert differing(resumed.portrait(), run.portrait()) == []


# -- the keys of parallel wrappers -------------------------------------------------------------------------------------


def check_goes_on(level, checkpoint_of, prepare=lambda run: None):
    """Save a run, load it into another, and compare both after more steps; return the checkpoint."""
    run = Run(level, "Adam").initialize()
    prepare(run)
    run.train(0, SAVED_AT)
    checkpoint = read(written(checkpoint_of(run)))
    losses = run.train(SAVED_AT, STEPS)
    resumed = Run(level, "Adam", seed=7).initialize()
    prepare(resumed)
    resumed.load(checkpoint)
    assert resumed.train(SAVED_AT, STEPS) == losses
    assert differing(resumed.portrait(), run.portrait()) == []
    return checkpoint


def wrap(run):
    run.model = torch.nn.DataParallel(run.model)


def test_a_checkpoint_of_a_parallel_wrapper_goes_on_to_the_bit(level):
    checkpoint = check_goes_on(level, Run.checkpoint, wrap)
    assert all(name.startswith("module.") for name in checkpoint["model"])
    assert {value.dtype for value in checkpoint["model"].values() if value.is_floating_point()} == {HIGH}


# -- FP16_Optimizer ----------------------------------------------------------------------------------------------------


def fp16_optimizer_checkpoint(run):
    """Return what the FP16_Optimizer of ``apex.fp16_utils`` wrote for this run."""
    return {
        "loss_scaler": None,
        "dynamic_loss_scale": True,
        "overflow": False,
        "first_closure_call_this_step": True,
        "optimizer_state_dict": run.optimizer.state_dict(),
        "fp32_from_fp16": run.optimizer._amp_stash.fp32_from_fp16_groups,
    }


def test_a_checkpoint_of_fp16_optimizer_goes_on_to_the_bit(level):
    check_goes_on(level, lambda run: dict(run.checkpoint(), optimizer=fp16_optimizer_checkpoint(run)))


def test_its_masters_restore_what_a_half_model_has_lost(level):
    source = Run("O2", "Adam").initialize()
    checkpoint = fp16_optimizer_checkpoint(source)
    everything = [[master.detach() + 2.0**-12 for master in amp.master_params(source.optimizer)]]
    checkpoint["fp32_from_fp16"] = everything
    run = Run(level, "Adam", seed=7)
    run.initialize()
    if level in MASTERING:
        everything[0][2:4] = []  # batch norm never was half
    run.optimizer.load_state_dict(checkpoint)
    restored = list(amp.master_params(run.optimizer))
    if level in MASTERING:
        restored[2:4] = []
    for param, value in zip(restored, everything[0]):
        assert torch.equal(param.detach(), value.to(param.dtype))


def with_masters_of_another_model(run):
    return dict(fp16_optimizer_checkpoint(run), fp32_from_fp16=[[torch.zeros(3, 3)]])


def flat_layout_of_before_2019(run):
    return {"optimizer_state_dict": {}, "fp32_groups_flat": [torch.zeros(9)], "cur_scale": 2.0}


@pytest.mark.parametrize(
    "make, told",
    [(with_masters_of_another_model, "optimizer_state_dict"), (flat_layout_of_before_2019, "_groups_flat")],
)
def test_what_cannot_be_loaded_is_refused_and_changes_nothing(level, make, told):
    run = Run(level, "Adam", seed=7).initialize()
    before = run.portrait()
    with pytest.raises(AmpError, match=told):
        run.optimizer.load_state_dict(make(run))
    assert differing(run.portrait(), before) == []


# -- torch's GradScaler ------------------------------------------------------------------------------------------------


def test_what_torchs_grad_scaler_wrote_is_the_first_scaler(level):
    Run(level, "SGD").initialize()
    by_torch = {
        "scale": 4096.0,
        "growth_factor": 2.0,
        "backoff_factor": 0.5,
        "growth_interval": 2000,
        "_growth_tracker": 17,
    }
    amp.load_state_dict(by_torch)
    assert amp.state_dict() == {"loss_scaler0": {"loss_scale": 4096.0, "unskipped": 17}}


@pytest.mark.skipif(
    not hasattr(getattr(torch, "amp", None), "GradScaler"), reason="this torch has no torch.amp.GradScaler"
)
def test_a_real_grad_scaler_hands_over_its_scale():
    scaler = torch.amp.GradScaler("cpu", init_scale=512.0)
    scaler.scale(torch.ones(()))
    Run("O2", "SGD").initialize()
    amp.load_state_dict(copy.deepcopy(scaler.state_dict()))
    assert amp.state_dict()["loss_scaler0"] == {"loss_scale": 512.0, "unskipped": 0}
