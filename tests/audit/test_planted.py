"""Planted faults, each with a healthy twin: the audit finds each, names the layer, and accuses no twin."""

import functools
from typing import Callable, NamedTuple, Sequence

import planted
import pytest
import torch
from planted import (
    MODELS,
    audited,
    changing_dtype,
    decaying,
    half_average,
    kept_average,
    mlp,
    rotating,
    small_state,
    train,
    underflowing,
    wrong,
)

from ampcompat.support.torch_compat import features

pytestmark = pytest.mark.skipif(not features.is_version_within(oldest="2.4"), reason="an audit is tried from 2.4 on")

HALF, FLOAT16, FULL = torch.bfloat16, torch.float16, torch.float32
#: The params of weights of 1, whose unit in the last place is the largest.
ONES = {"mlp": "1.weight", "conv": "2.weight", "embedding": "shift"}


class Updates(NamedTuple):
    """Weights of a half dtype, trained without masters; the twin has float32 weights."""

    model: str
    dtype: torch.dtype
    kind: str
    options: dict


UPDATES = {
    f"{kind} {options} {dtype} {model}": Updates(model, dtype, kind, options)
    for kind, options, dtype in [
        ("AdamW", {"lr": 1e-3}, HALF),
        ("AdamW", {"lr": 1e-4}, HALF),
        ("AdamW", {"lr": 1e-5}, HALF),
        ("AdamW", {"lr": 1e-6, "weight_decay": 0.1}, HALF),
        ("AdamW", {"lr": 1e-5, "foreach": True}, HALF),
        ("Adam", {"lr": 1e-5, "amsgrad": True}, HALF),
        ("NAdam", {"lr": 1e-5}, HALF),
        ("Adamax", {"lr": 1e-5}, HALF),
        ("Adagrad", {"lr": 1e-5}, HALF),
        ("RMSprop", {"lr": 1e-6, "momentum": 0.9}, HALF),
        ("SGD", {"lr": 1e-5, "momentum": 0.9}, HALF),
        ("SGD", {"lr": 1e-4, "momentum": 0.9, "nesterov": True}, HALF),
        ("SGD", {"lr": 2e-4}, FLOAT16),
        ("SGD", {"lr": 2e-5, "weight_decay": 0.01}, FLOAT16),
    ]
    for model in MODELS
}


class Run(NamedTuple):
    """A fault of another kind: what trains with it, what trains without it, and the script's arguments."""

    kind: str
    planted: Callable
    healthy: Callable
    argv: Sequence = ()


def plain(dtype=FULL, autocast=None, lr=0.1, **options):
    """Train the perceptron."""
    model = mlp(dtype)
    train(model, torch.optim.SGD(model.parameters(), lr=lr), autocast=autocast, **options)


def clipping(when, function):
    """Train under float16 autocast with a scaler, and clip gradients."""
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    plain(autocast=FLOAT16, scaler=scaler, clip=(when, function, 1.0))


def averaged_model(dtype, decay):
    """Train a float32 model with torch's ``AveragedModel`` in a dtype."""
    model = mlp(FULL)
    average = torch.optim.swa_utils.AveragedModel(
        model, avg_fn=lambda mean, param, count: mean + (param.to(mean.dtype) - mean) * (1 - decay)
    ).to(dtype)
    train(model, torch.optim.SGD(model.parameters(), lr=0.5), after=lambda step: average.update_parameters(model))


def adam(dtype, weight=1.0, **options):
    """Train with Adam and small gradients."""
    model = mlp(dtype)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, **options)
    train(model, optimizer, steps=4, loss_of=lambda outputs: outputs.pow(2).mean() * weight)


of = functools.partial
#: By kind: the name of a case, what trains with the fault, and what trains without it.
PAIRS = {
    "half_average": {
        "average, 0.999": (of(half_average, HALF), of(half_average, FULL)),
        "or a frozen teacher": (of(half_average, HALF, decay=0.9999), of(half_average, HALF, is_written=False)),
        "AveragedModel, 0.999": (of(averaged_model, HALF, 0.999), of(averaged_model, FULL, 0.999)),
        "AveragedModel, 0.9999": (of(averaged_model, HALF, 0.9999), of(averaged_model, FULL, 0.9999)),
        "average in a dict": (of(kept_average, HALF, "mul_ and add_"), of(kept_average, FULL, "mul_ and add_")),
        "average in a list, or a copy": (of(kept_average, HALF, "foreach"), of(kept_average, HALF, "copy_")),
        "average by .data": (of(kept_average, HALF, ".data"), of(kept_average, HALF, ".data is read")),
        "average by lerp_": (of(kept_average, HALF, "lerp_"), of(kept_average, HALF, "lerp_", decay=0.1)),
        "average by new .data": (of(kept_average, HALF, "new .data"), of(kept_average, FULL, "new .data")),
        "average of new tensors": (of(kept_average, HALF, "new tensors"), of(kept_average, FULL, "new tensors")),
        "average, or new copies": (of(kept_average, HALF, "new tensors"), of(kept_average, HALF, "new copies")),
    },
    "no_scaler": {
        "no scaler": (of(underflowing, None), of(underflowing, 2.0**16)),
        "clipped gradients": (of(underflowing, None, clip=1e-6), of(underflowing, None, HALF, clip=1e-6)),
        "gradients of 0": (of(underflowing, None, weight=1e-9), of(underflowing, 2.0**16, weight=1e-9)),
        "float16 weights": (
            of(underflowing, None, weight=1e-9, weights=FLOAT16),
            of(underflowing, None, weight=1e-9, weights=torch.float64),
        ),
        "no scaler, or by hand": (of(underflowing, None), of(planted.scaled_by_hand, 1024.0)),
        "no scaler, or bfloat16": (of(underflowing, None), of(underflowing, None, HALF)),
    },
    "clipped_scaled": {
        name: (of(clipping, "scaled", name), of(clipping, "unscaled", name)) for name in ("norm", "value")
    },
    "changed_dtype": {"cast by validation": (of(changing_dtype, False), of(changing_dtype, True))},
    "rounded_weights": {
        "cast and back": (of(changing_dtype, False, True), of(changing_dtype, True, True)),
        "cast to float16 and back": (
            of(changing_dtype, False, True, FLOAT16),
            of(changing_dtype, False, True, torch.float64),
        ),
    },
    "replaced_params": {"by validation": (of(planted.replacing_params, HALF), of(planted.replacing_params, FULL))},
    "lost_updates": {"a group that is added": (of(planted.growing, HALF), of(planted.growing, FULL))},
    "rounded_integers": {
        "positions": (of(rotating, "matmul"), of(rotating, "disabled")),
        "positions, elementwise": (of(rotating, "matmul"), of(rotating, "product")),
        "positions that bfloat16 holds": (of(rotating, "matmul"), of(rotating, "matmul", length=257)),
    },
    "lost_decay": {
        "weight decay": (of(decaying, HALF, lr=0.05, weight_decay=0.01), of(decaying, FULL, lr=0.05)),
        "or none": (of(decaying, HALF, lr=0.02, weight_decay=0.05), of(decaying, FULL, lr=0.02, weight_decay=0)),
    },
    "rounded_eps": {"eps": (of(adam, FLOAT16), of(adam, FULL))},
    "rounded_state": {
        "second moment": (of(adam, FLOAT16, 1e-2, eps=1e-3), of(adam, FULL, 1e-2, eps=1e-3)),
        "float16 state of float32 weights": (of(small_state, FLOAT16), of(small_state, FULL)),
        "float16 state, or bfloat16": (of(small_state, FLOAT16), of(small_state, HALF)),
    },
}
RUNS = {f"{kind} {name}": Run(kind, *pair) for kind, pairs in PAIRS.items() for name, pair in pairs.items()}
ARGUMENTS = ["--fp16", "--bf16 --lr 1", "--amp", "--mixed-precision fp16", "--dtype=bfloat16", "--half=1"]
ARGUMENTS += ["--precision bf16-mixed", "--use_amp true"]
RUNS.update((argv, Run("dead_flag", plain, of(plain, autocast=HALF), argv.split())) for argv in ARGUMENTS)
AROUND = of(planted.region_around, "loss"), of(planted.region_around, "forward")
RUNS["a region around the loss alone"] = Run("dead_flag", *AROUND, ["--fp16"])


def trained(case, dtype):
    """Train a case of ``UPDATES`` in a dtype; return the report, the model, and the first weights."""
    model = MODELS[case.model](dtype)
    first = {name: param.detach().clone() for name, param in model.named_parameters()}
    optimizer = getattr(torch.optim, case.kind)(model.parameters(), **case.options)
    return audited(functools.partial(train, model, optimizer)), model, first


@pytest.mark.parametrize("case", UPDATES.values(), ids=UPDATES)
def test_lost_updates_are_found_their_layer_is_named_and_the_elements_that_did_not_move_are_counted_exactly(case):
    report, model, first = trained(case, case.dtype)
    found = next(each for each in report["findings"] if each["kind"] == "lost_updates")
    unmoved = {name: int((param == first[name]).sum()) for name, param in model.named_parameters()}
    layers = {each["name"]: each for each in found["layers"]}
    if case.options["lr"] < 1e-3:
        assert layers[ONES[case.model]]["unmoved"] == layers[ONES[case.model]]["numel"]
    assert {name: each["unmoved"] for name, each in layers.items()} == {name: unmoved[name] for name in layers}
    assert {each["name"]: each["unmoved"] for each in report["tensors"] if each["kind"] == "weight"} == unmoved
    assert found["level"] == ("O5" if case.dtype is HALF else "O2")


@pytest.mark.parametrize("case", UPDATES.values(), ids=UPDATES)
def test_its_twin_in_float32_is_right(case):
    assert wrong(trained(case, FULL)[0]) == []


@pytest.mark.parametrize("case", RUNS.values(), ids=RUNS)
def test_another_fault_is_found_and_its_twin_is_right(case):
    assert case.kind in wrong(audited(case.planted, case.argv))
    report = audited(case.healthy, case.argv)
    assert (report["findings"] if case.kind == "no_scaler" else wrong(report)) == []


def test_there_are_enough_cases():
    assert len(UPDATES) + len(RUNS) >= 60
