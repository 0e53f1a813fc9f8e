"""``migrate``: the new script trains as the old one does, without Apex and without ampcompat."""

import ast
import re
import sys

import migrated_scripts as scripts
import pytest
import torch
from helpers.half_kernels import trains_in

import ampcompat
from ampcompat.apex import install

pytest.importorskip("libcst", reason="the extra `migrate` has LibCST")
if not hasattr(getattr(torch, "amp", None), "GradScaler") or not trains_in(torch.float16):
    pytest.skip("migrated scripts need torch 2.3 or later", allow_module_level=True)

from ampcompat.static_analysis.migrate import migrate, write_level  # noqa: E402

STEPS = 12


def run_old(source, *arguments, **names):
    """Return the losses of a script for Apex under ampcompat, and its namespace."""
    install.install()
    try:
        return executed(source, *arguments, **names)
    finally:
        install.uninstall()
        ampcompat.reset()


def run_new(source, monkeypatch, *arguments, **names):
    """Return the losses of a migrated script where neither Apex nor ampcompat can be imported."""
    for name in [each for each in sys.modules if each.partition(".")[0] in ("apex", "ampcompat")] + ["apex"]:
        monkeypatch.setitem(sys.modules, name, None)
    try:
        return executed(source, *arguments, **names)
    finally:
        monkeypatch.undo()


def executed(source, *arguments, **names):
    names = dict(names, __name__="script")
    exec(compile(source, "script.py", "exec"), names)
    return names["run"](*arguments), names


@pytest.mark.parametrize(
    "name, arguments, notes",
    [
        ("SIMPLE", None, []),
        ("ACCUMULATING", ["--fp16"], ["only at run time"]),
        ("ACCUMULATING", ["--fp16", "--loss_scale", "128.0"], ["only at run time"]),
        ("ACCUMULATING", [], ["only at run time"]),
        ("TRAINER", None, ["O2 becomes autocast"]),
        ("FUSED", None, []),
    ],
)
def test_the_new_script_trains_as_the_old_one(name, arguments, notes, monkeypatch):
    source = getattr(scripts, name)
    result = migrate(source)
    assert result.left == [] and [text for text in notes if text not in str(result.notes)] == []
    assert "apex" not in result.source.replace("Apex", "") or notes
    assert migrate(result.source) == (result.source, [], [])
    old, _ = run_old(source, STEPS, ARGUMENTS=arguments)
    new, _ = run_new(result.source, monkeypatch, STEPS, ARGUMENTS=arguments)
    assert new == pytest.approx(old, rel=2e-2, abs=2e-2)
    assert old[0] != old[-1]


def test_autocast_and_scaler_are_in_force(monkeypatch):
    seen = []
    source = migrate(scripts.SIMPLE).source.replace(
        "losses.append", "SEEN.append((outputs.dtype, scaler.get_scale()))\n        losses.append"
    )
    run_new(source, monkeypatch, 2, SEEN=seen)
    assert seen == [(torch.float16, 2.0**16)] * 2


def test_an_old_checkpoint_loads_in_the_new_script(monkeypatch):
    _, names = run_old(scripts.TRAINER, STEPS)
    saved = names["run"].saved
    _, names = run_new(migrate(scripts.TRAINER).source, monkeypatch, 1, saved)
    scaler = names["scaler"]
    assert scaler.get_scale() == 2.0**16
    assert scaler.state_dict()["_growth_tracker"] == STEPS + 1


@pytest.mark.parametrize("between", ["", "\n", "\n\n", "\n\n\n", "# begins here\n", "\n# begins here\n"])
def test_two_blank_lines_follow_the_function_that_loads_the_scaler(between):
    first = "model, optimizer = make()"
    calls = "model, optimizer = amp.initialize(model, optimizer)\namp.load_state_dict(state)\n"
    lines = migrate("import torch\nfrom apex import amp\n" + between + first + "\n" + calls).source.split("\n")
    end = lines.index("    scaler.load_state_dict(state)") + 1
    begin = next(at for at in range(end, len(lines)) if lines[at])
    assert lines[begin] == (between.strip() or first) and begin - end == max(2, len(between) - len(between.lstrip()))


def test_line_ends_of_windows_stay():
    old = scripts.SIMPLE.replace("\n", "\r\n")
    new = migrate(old).source
    assert new == migrate(scripts.SIMPLE).source.replace("\n", "\r\n") and migrate(new).source == new


HEAD = "import torch\nfrom apex import amp\nmodel, optimizer = amp.initialize(model, optimizer, {})\n"


@pytest.mark.parametrize(
    "options, expected, note",
    [
        ("opt_level='O0'", ["import torch\nif ready"], None),
        ("enabled=args.fp16", ["use_amp = bool(args.fp16)\n", "GradScaler(device_type, enabled=use_amp)"], None),
        (
            "opt_level='O1', enabled=args.fp16, loss_scale=128",
            ["use_amp = bool(args.fp16)\n", "    init_scale=128.0,\n    growth_interval"],
            "static",
        ),
        ("opt_level='O4'", ["import torch\nif ready"], None),
        ("opt_level='O5'", ["import torch\nif ready"], "bfloat16"),
        ("keep_batchnorm_fp32=args.keep", ["scaler = "], "args.keep is no longer read here"),
        ("keep_batchnorm_fp32=None", ["scaler = "], None),
        ("opt_level='O3'", ["scaler = torch.amp.GradScaler(device_type)\n"], "weights stay float32"),
        ("'O1', max_loss_scale=4", ["scaler = torch.amp.GradScaler(device_type)\n"], "max_loss_scale"),
        ("loss_scale='dynamic'", ["scaler = torch.amp.GradScaler(device_type)\n"], None),
        ("enabled=bits == 16", ["use_amp = bits == 16\n"], None),
        ("'O2'", ["scaler = torch.amp.GradScaler(device_type)\n"], "third argument is enabled"),
        (
            "enabled=a or b, opt_level=level",
            [
                'use_amp = bool(a or b) and level != "O0"\n',
                'amp_dtype = torch.bfloat16 if level in ("O4", "O5") else torch.float16\n',
                "enabled=use_amp and amp_dtype == torch.float16",
            ],
            "run time",
        ),
        ("opt_level=low if fast else high", ['use_amp = (low if fast else high) != "O0"\n'], "run time"),
        ("opt_level='O1' if fast else 'O2'", ["scaler = torch.amp.GradScaler(device_type)\n"], "O1, O2 mean float16"),
        ("opt_level='O1' if fast else 'O4'", ['"O4" else torch.float16\n', "amp_dtype == torch.float16"], "run time"),
        (
            "loss_scale=get('loss_scale')",
            [
                "init_scale=2.0**16 if get('loss_scale') in (None, \"dynamic\") else float(get('loss_scale'))",
                "growth_interval=2000 if get('loss_scale') in (None, \"dynamic\") else 2**31 - 1",
            ],
            None,
        ),
    ],
)
def test_options_of_initialize(options, expected, note):
    options = options.replace("'O1', max", "opt_level='O1', max")
    result = migrate(HEAD.format(options) + "if ready:\n    start()\n")
    assert [text for text in expected if text not in result.source] == [] and result.left == []
    assert (note is None and not result.notes) or any(note in text for _, text in result.notes)


#: A script with several statements on a line: {} is the import, the set-up, and the backward pass.
LINES = """import torch
{}
model = torch.nn.Linear(8, 1); model.train()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
{}
for p in model.parameters(): p.requires_grad = bool(p.dim())
if f(): g(); h()  # both
for i in range(3):
    a(); b(); optimizer.zero_grad(); loss = model(x).sum()
    {}; c(); d()
"""
SAME = ("model = torch.nn.Linear(8, 1); model.train()", "if f(): g(); h()  # both")
SAME += ("for p in model.parameters(): p.requires_grad = bool(p.dim())",)


def test_only_lines_that_change_are_split():
    setup = "model, optimizer = amp.initialize(model, optimizer, opt_level='O1')"
    backward = "with amp.scale_loss(loss, optimizer) as s: s.backward()\n    optimizer.step()"
    new = migrate(LINES.format("from apex import amp", setup, backward)).source
    assert [line for line in SAME if line not in new.split("\n")] == []
    assert "    a()\n    b()\n    optimizer.zero_grad()\n    with torch.autocast(" in new
    assert "    scaler.step(optimizer)\n    scaler.update()\n    c()\n    d()\n" in new
    new = write_level(LINES.format("", "", "loss.backward()\n    optimizer.step()"), "O1").source
    assert [line for line in SAME if line not in new.split("\n")] == []
    assert "        scaled_loss.backward()\n    optimizer.step(); c(); d()\n" in new


@pytest.mark.parametrize("options", ["loss_scale=128", "loss_scale=value"])
def test_a_static_loss_scale_is_kept_after_an_overflow(options):
    new = migrate(HEAD.format("opt_level='O1', " + options)).source
    made = re.search(r"torch\.amp\.GradScaler\(.*?\n\)", new, re.DOTALL).group()
    scaler = eval(made, {"torch": torch, "device_type": "cpu", "value": "128"})
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    for factor in (float("inf"), 1.0):
        optimizer.zero_grad()
        scaler.scale((weight * factor).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        assert scaler.get_scale() == 128.0
    assert weight.tolist() == [0.0, 0.0]  # the first step was skipped


@pytest.mark.parametrize(
    "code, reason",
    [
        ("optimizer.step(closure)\n", "closure"),
        ("model, optimizer = amp.initialize(model, optimizer, **options)\n", "in a dict or list"),
        ("for opt in optimizers:\n    opt.step()\n", "scaler.step"),
        ("result = optimizer.step()\n", "scaler.step"),
        ("optimizer._lazy_init_maybe_master_weights()\n", "_lazy_init_maybe_master_weights"),
        ("if hasattr(optimizer, '_amp_stash'):\n    print('amp')\n", "_amp_stash"),
        ("amp.register_float_function(torch, 'sigmoid')\n", "register_float_function"),
        ("from apex.optimizers import FusedLAMB\nmake = FusedLAMB(params)\n", "FusedLAMB"),
        ("from apex.optimizers import FusedSGD\nkind = FusedSGD if fast else torch.optim.SGD\n", "FusedSGD"),
        (
            "def backward(loss):\n    with amp.scale_loss(loss, optimizer) as s:\n        s.backward()\n",
            "is elsewhere",
        ),
        (
            "for i in range(9):\n    loss = model(i)\n    with amp.scale_loss(loss, optimizer) as s:\n"
            "        s.backward()\n"
            "    clip_grad_norm_(amp.master_params(optimizer), 1.0)\n    if i % 2:\n        optimizer.step()\n",
            "steps less often",
        ),
        (
            "loss = model(1)\nwith amp.scale_loss(loss, optimizer) as s:\n    s.backward()\nother.backward()\n",
            "not scaled",
        ),
    ],
)
def test_what_cannot_be_rewritten_stays_and_is_marked(code, reason):
    result = migrate(HEAD.format("opt_level='O1'") + code)
    assert any(reason in text for _, text in result.left)
    assert "# ampcompat migrate: " in result.source
    ast.parse(result.source)


def test_several_optimizers_that_step_together_share_one_update():
    code = "loss = model(1)\nwith amp.scale_loss(loss, [a, b]) as s:\n    s.backward()\na.step()\nb.step()\n"
    new = migrate("from apex import amp\nmodel, [a, b] = amp.initialize(model, [a, b])\n" + code).source
    assert "scaler.step(a)\nscaler.step(b)\nscaler.update()" in new and new.count("update()") == 1


def test_two_scaled_losses_in_one_with_statement():
    code = (
        "one, two = model(1)\nwith amp.scale_loss(one, optimizer, 0) as a, amp.scale_loss(two, optimizer, 1) as b:\n"
        "    a.backward()\n    b.backward()\noptimizer.step()\n"
    )
    result = migrate(HEAD.format("opt_level='O1', num_losses=2") + code)
    assert result.left == [] and "apex" not in result.source
    assert "scaler.scale(one)" in result.source and "scaler.scale(two)" in result.source


def test_gradients_are_unscaled_once_per_step():
    code = (
        "for i in range(2):\n    loss = model(i)\n    with amp.scale_loss(loss, optimizer) as s:\n"
        "        s.backward()\n    clip_grad_norm_(model.parameters(), 1.0)\n"
        "    clip_grad_value_(model.parameters(), 1.0)\n    optimizer.step()\n"
    )
    result = migrate(HEAD.format("opt_level='O1'") + code)
    assert result.source.count("scaler.unscale_(optimizer)\n") == 1 and result.left == []
    assert result.source.index("unscale_") < result.source.index("clip_grad_norm_")


LOOP = (
    "for i in range(2):\n    loss = model(i)\n    with amp.scale_loss(loss, optimizer) as s:\n        s.backward()\n"
    "{}    optimizer.step()\n{}"
)


@pytest.mark.parametrize(
    "reading",
    [
        "    norms = [p.grad.norm() for p in model.parameters() if p.grad is not None]\n",
        "    for name, p in model.named_parameters():\n        if p.grad is not None:\n            log(name, p.grad)\n",
        "    for p in amp.master_params(optimizer):\n        p.grad.clamp_(-1, 1)\n",
        "    for group in optimizer.param_groups:\n        for p in group['params']:\n            p.grad.div_(2)\n",
        "    print(model.head.weight.grad.abs().max())\n",
    ],
)
def test_gradients_are_unscaled_where_they_are_read(reading):
    result = migrate(HEAD.format("opt_level='O1'") + LOOP.format(reading, ""))
    assert result.left == [] and result.source.count("unscale_") == 1
    assert "    scaler.unscale_(optimizer)\n" + reading.split("\n")[0].split(" in ")[0] in result.source


@pytest.mark.parametrize(
    "code",
    [
        LOOP.format("    step = x.grad.sign()\n", ""),  # of an input, which a step does not unscale
        LOOP.format("    for p in model.parameters():\n        p.grad = None\n", ""),
        LOOP.format("", "    print([p.grad for p in model.parameters()])\n"),  # after the step
        LOOP.format("    grad = torch.autograd.grad(loss, x)\n", ""),
    ],
)
def test_gradients_are_not_unscaled_where_none_are_read(code):
    result = migrate(HEAD.format("opt_level='O1'") + code)
    assert result.left == [] and "unscale_" not in result.source


def test_gradients_are_unscaled_before_they_are_clipped_inside_the_block():
    code = LOOP.format(
        "        clip_grad_norm_(model.parameters(), 1.0)\n"
        "        for p in model.parameters():\n            reduce(p.grad)\n",
        "",
    )
    result = migrate(HEAD.format("opt_level='O1'") + code)
    assert result.left == [] and result.source.count("unscale_") == 1
    assert "scaler.unscale_(optimizer)\n    clip_grad_norm_" in result.source


@pytest.mark.parametrize(
    "code, reason",
    [
        (
            LOOP.format(
                "    kept = [p.grad.clone() for p in model.parameters()]\n    loss = model(i)\n"
                "    with amp.scale_loss(loss, optimizer) as s:\n        s.backward()\n",
                "",
            ),
            "another pass",
        ),
        (
            LOOP.format(
                "    if i % 10 == 0:\n        print(model.head.weight.grad)\n"
                "    clip_grad_norm_(model.parameters(), 1.0)\n",
                "",
            ),
            "already",
        ),
    ],
)
def test_what_cannot_be_unscaled_once_is_marked(code, reason):
    result = migrate(HEAD.format("opt_level='O1'") + code)
    assert [reason in text for _, text in result.left] == [True]


def test_the_function_that_loads_old_checkpoints_is_not_marked_where_apex_is_left():
    code = "import apex\nfrom apex.parallel.LARC import LARC\napex.amp.load_state_dict(saved)\napex.mlp.MLP([1, 2])\n"
    source = migrate(HEAD.format("opt_level='O1'") + code).source
    function = source[source.index("def load_scaler") :].split("\n\n\n")[0]
    assert "left as it is" in source and "left as it is" not in function


def test_names_that_the_script_uses_itself_are_not_taken():
    new = migrate("from apex import amp\nscaler = use_amp = 1\nmodel, o = amp.initialize(model, o, enabled=x)\n").source
    assert "grad_scaler = torch.amp.GradScaler" in new and "use_amp_ = bool(x)" in new and "import torch\n" in new


def test_modules_of_apex_that_torch_has():
    code = (
        "import apex\nfrom apex.parallel import DistributedDataParallel as DDP\n"
        "model = apex.parallel.convert_syncbn_model(model)\nmodel = DDP(model, delay_allreduce=True)\n"
        "ln = apex.normalization.FusedRMSNorm(8, eps=1e-6)\no = apex.optimizers.FusedAdam(p, 1e-3, adam_w_mode=False)\n"
    )
    new = migrate(HEAD.format("opt_level='O1'") + code).source
    for text in (
        "torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)",
        "torch.nn.parallel.DistributedDataParallel(model)\n",
        "torch.nn.RMSNorm(8, eps=1e-6)",
        "torch.optim.Adam(p, 1e-3, weight_decay=0.0, fused=torch.cuda.is_available())\n",
    ):
        assert text in new
    assert "apex" not in new
