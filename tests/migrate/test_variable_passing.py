"""How the variables of a migrated script reach the functions that need them, and where they are set."""

import ast
import textwrap

import pytest

pytest.importorskip("libcst", reason="the extra `migrate` has LibCST")

from ampcompat.scripts.migrate import migrate  # noqa: E402

STEP = """
    loss = model(1)
    with amp.scale_loss(loss, optimizer) as scaled:
        scaled.backward()
    optimizer.step()
"""


def migrated(text, left=()):
    """Return the new source of a script, whose imports are added here; ``left``: words of what is left."""
    result = migrate("import torch\nfrom apex import amp\n" + textwrap.dedent(text))
    ast.parse(result.source)
    assert len(result.left) == len(left) and all(word in text for word, (_, text) in zip(left, result.left))
    assert "global" not in result.source
    return result.source


@pytest.mark.parametrize(
    "parameters, arguments, new_parameters, new_arguments",
    [
        ("model, optimizer", "model, optimizer", "model, optimizer, scaler", "model, optimizer, scaler"),
        ("model, optimizer", "model, optimizer=optimizer", None, "model, optimizer=optimizer, scaler=scaler"),
        ("model, optimizer, n=1", "model, optimizer", "model, optimizer, n=1, *, scaler", None),
        ("model, optimizer, *rest", "model, optimizer, 3", "model, optimizer, *rest, scaler", None),
        ("model, optimizer, *, n", "model, optimizer, n=1", "model, optimizer, *, n, scaler", None),
        ("model, optimizer, **more", "model, optimizer, n=1", "model, optimizer, scaler, **more", None),
    ],
)
def test_a_function_gets_the_scaler_and_its_callers_pass_it(parameters, arguments, new_parameters, new_arguments):
    text = "def train({}):{}\n\ndef main():\n    model, optimizer = amp.initialize(m, o)\n    train({})\n"
    new = migrated(text.format(parameters, STEP, arguments))
    assert "def train({}):".format(new_parameters or parameters + ", scaler") in new
    by_name = arguments + ", scaler=scaler"
    assert f"    train({new_arguments or by_name})\n" in new


def test_functions_between_pass_it_on():
    new = migrated(
        "def step(model, optimizer):" + STEP + "\n"
        "def epoch(model, optimizer):\n    step(model, optimizer)\n\n"
        "def main():\n    model, optimizer = amp.initialize(m, o)\n    epoch(model, optimizer)\n"
    )
    assert "def epoch(model, optimizer, scaler):\n    step(model, optimizer, scaler)\n" in new
    assert "    epoch(model, optimizer, scaler)\n" in new


def test_functions_inside_need_no_parameter():
    new = migrated(
        "def main():\n    model, optimizer = amp.initialize(m, o)\n\n    def step():\n"
        + textwrap.indent(STEP, "    ")
        + "\n    run(step)\n"
    )
    assert "    def step():\n" in new and "scaler.scale(loss).backward()" in new


def test_what_sets_it_up_returns_it():
    new = migrated(
        "def make():\n    model, optimizer = amp.initialize(m, o)\n    return model, optimizer\n\n"
        "def train(model, optimizer):" + STEP + "\n"
        "def main():\n    model, optimizer = make()\n    train(model, optimizer)\n"
    )
    assert "    return model, optimizer, scaler\n" in new
    assert "    model, optimizer, scaler = make()\n    train(model, optimizer, scaler)\n" in new


@pytest.mark.parametrize("use", ["register(step)", "pool.map(step, items)", "hook = step"])
def test_a_function_that_others_call_is_marked(use):
    new = migrated(
        "def step(i):" + STEP + f"\ndef main():\n    model, optimizer = amp.initialize(m, o)\n    {use}\n",
        left=["step() needs scaler: pass it here from main()"],
    )
    assert "# ampcompat migrate: step() needs scaler: pass it here from main()\ndef step(i):\n" in new


def test_methods_share_it_by_self():
    new = migrated(
        "class Trainer:\n    def __init__(self, model, optimizer, level):\n"
        "        self.model, self.optimizer = amp.initialize(model, optimizer, opt_level=level)\n\n"
        "    def step(self):\n        loss = self.model(1)\n"
        "        with amp.scale_loss(loss, self.optimizer) as scaled:\n            scaled.backward()\n"
    )
    for line in (
        '        self.use_amp = level != "O0"\n',
        "        self.scaler = torch.amp.GradScaler(device_type, enabled=self.use_amp and self.amp_dtype == ",
        "        with torch.autocast(device_type, dtype=self.amp_dtype, enabled=self.use_amp):\n",
        "        self.scaler.scale(loss).backward()\n",
    ):
        assert line in new


def test_a_set_up_under_a_condition_becomes_one_with_that_condition():
    new = migrated(
        "def main(args):\n    # mixed precision\n    if args.fp16:\n        print('fp16')\n"
        "        model, optimizer = amp.initialize(m, o)\n" + STEP
    )
    assert (
        "    # mixed precision\n"
        "    use_amp = bool(args.fp16)\n"
        "    scaler = torch.amp.GradScaler(device_type, enabled=use_amp)\n    if args.fp16:\n        print('fp16')\n"
        "        model, optimizer = m, o\n"
    ) in new


def test_a_set_up_whose_options_are_made_under_the_condition_stays_there():
    new = migrated(
        "if fp16:\n    level = choose()\n    model, optimizer = amp.initialize(model, optimizer, opt_level=level)\n"
        + textwrap.dedent(STEP)
    )
    assert new.index("use_amp = False\n") < new.index("if fp16:") < new.index('    use_amp = level != "O0"\n')
    assert new.count("GradScaler(") == 2


def test_branches_that_have_become_the_same_are_joined():
    text = (
        "model, optimizer = amp.initialize(model, optimizer, enabled=fp16)\nloss = model(1)\n"
        "{}:\n    {}\nelse:\n    {}\n"
    )
    scaled = "with amp.scale_loss(loss, optimizer) as s:\n        s.backward(retain_graph=True)"
    plain = "loss.backward(retain_graph=True)"
    for test, one, other in (("if fp16", scaled, plain), ("if not fp16", plain, scaled)):
        new = migrated(text.format(test, one, other))
        assert "\nscaler.scale(loss).backward(retain_graph=True)\n" in new and "if " not in new.partition("loss =")[2]
    new = migrated(text.format("if fp16", scaled, "other.backward(retain_graph=True)"))
    assert "else:\n    other.backward(retain_graph=True)\n" in new


@pytest.mark.parametrize(
    "made, expected",
    [
        ("optimizer = SGD(model.parameters(), lr=1)", "model.parameters()"),
        ("optimizer = SGD(filter(lambda p: p.requires_grad, model.parameters()))", "model.parameters()"),
        ("optimizer = SGD(model.head.parameters(), lr=1)", "model.head.parameters()"),
        ("optimizer = SGD(groups, lr=1)", '[p for group in optimizer.param_groups for p in group["params"]]'),
        (
            "optimizer = SGD(model.parameters())\nif big:\n    optimizer = Adam(other.parameters())",
            '[p for group in optimizer.param_groups for p in group["params"]]',
        ),
    ],
)
def test_params_are_named_by_their_model_where_it_has_the_same(made, expected):
    new = migrated(
        "model = make()\n" + made + "\nmodel, optimizer = amp.initialize(model, optimizer)\n"
        "loss = model(1)\nwith amp.scale_loss(loss, optimizer) as s:\n    s.backward()\n"
        "clip_grad_norm_(amp.master_params(optimizer), 1.0)\n"
    )
    assert f"clip_grad_norm_({expected}, 1.0)" in new.replace("\n    ", "").replace("(\n", "(").replace("\n)", ")")


@pytest.mark.parametrize(
    "head, expected",
    [
        ("device = torch.device('cuda')\n", "GradScaler(device.type)"),
        ("device = 'cuda' if torch.cuda.is_available() else 'cpu'\n", "GradScaler(device)"),
        ("device = pick()\n", "GradScaler(device_type)"),
        ("device = torch.device('cuda')\ndevice = other\n", "GradScaler(device_type)"),
    ],
)
def test_a_device_that_the_script_has_is_used(head, expected):
    new = migrated(head + "model, optimizer = amp.initialize(model, optimizer)\n" + textwrap.dedent(STEP))
    assert expected in new and new.count("device_type = ") == (expected == "GradScaler(device_type)")


def test_options_say_which_dtypes_are_possible():
    head = "parser.add_argument('--opt_level', choices={})\n"
    head += "model, optimizer = amp.initialize(m, o, opt_level=a.opt_level)\n"
    new = migrated(head.format(["O1", "O2"]) + textwrap.dedent(STEP))
    assert "use_amp" not in new and "bfloat16" not in new and "dtype=torch.float16)" in new
    new = migrated(head.format(["O1", "O4"]) + textwrap.dedent(STEP))
    assert 'torch.bfloat16 if a.opt_level == "O4" else torch.float16' in new and "use_amp" not in new


def test_what_is_left_is_marked_at_its_line():
    new = migrated(
        "model, optimizer = amp.initialize(model, optimizer)\ndef back(loss):\n    print(loss)\n"
        "    with amp.scale_loss(loss, optimizer) as s:\n        s.backward()\n",
        left=["elsewhere"],
    )
    assert "    # ampcompat migrate: the forward pass of this loss is elsewhere: put it under torch.autocast\n" in (
        new.replace("\n    #    ", "")
    )
    assert new.index("print(loss)") < new.index("# ampcompat") < new.index("scaler.scale(loss)")


CAST = "with torch.autocast(device_type, dtype=torch.float16):\n"
EVALUATIONS = [
    (
        "    with torch.no_grad():\n        for x in data:\n            y = model(x)\n            print(y.argmax(1))\n",
        "            " + CAST + "                y = model(x)\n            print(",
    ),
    (
        "    model.eval()\n    for x, t in load():\n        y = model(x)\n        total += criterion(y, t).item()\n",
        "        " + CAST + "            y = model(x)\n            total += ",
    ),
    (
        "    model.eval()\n    if a:\n        y = model(a)\n    else:\n        y = model(b)\n    return softmax(y)\n",
        "    " + CAST + "        if a:\n            y = model(a)\n",
    ),
    (
        "    with torch.no_grad():\n        y = model(1)\n        y = y.float()\n    return softmax(y)\n",
        "    with torch.no_grad():\n        " + CAST + "            y = model(1)\n",
    ),
]


@pytest.mark.parametrize("body, expected", EVALUATIONS)
def test_evaluation_casts_what_a_model_computes_and_nothing_else(body, expected):
    new = migrated("def test(model):\n" + body + "\nmodel, optimizer = amp.initialize(model, optimizer)\ntest(model)\n")
    assert expected in new and new.count("torch.autocast(") == 1


def test_an_evaluation_whose_callers_have_no_autocast_is_done_in_float32():
    result = migrate(
        "import argparse\nimport torch\nfrom apex import amp\n"
        "def train(args, model, optimizer):\n    if args.fp16:\n"
        "        model, optimizer = amp.initialize(model, optimizer, opt_level=args.level)\n"
        + STEP
        + "    test(model)\n\n"
        "def test(model, prefix=''):\n    with torch.no_grad():\n        return model(1)\n\n"
        "def main(args):\n    if args.train:\n        train(args, model, optimizer)\n    test(model, 'end')\n"
    )
    new = result.source
    assert result.left == [] and any("test() evaluates in float32" in note for _, note in result.notes)
    assert new.startswith("import argparse\nimport torch\nimport contextlib\n")
    assert "def test(model, prefix='', autocast=contextlib.nullcontext):\n" in new
    assert "    test(model, autocast=autocast)\n" in new and "    test(model, 'end')\n" in new
    assert "    with torch.no_grad(), autocast():\n" in new


def test_what_is_set_up_under_a_condition_only_is_not_returned():
    migrated(
        "def make():\n    model, optimizer = amp.initialize(m, o)\n    return model, optimizer\n\n"
        "def train(model, optimizer):" + STEP + "\n"
        "def main():\n    if ready:\n        model, optimizer = make()\n    train(model, optimizer)\n",
        left=["train() needs scaler: pass it here from make()"],
    )
