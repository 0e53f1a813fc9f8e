"""How the variables of a migrated script reach the functions that need them, and where they are set."""

import ast
import textwrap

import pytest
import torch

pytest.importorskip("libcst", reason="the extra `migrate` has LibCST")

from ampcompat.static_analysis.migrate import migrate  # noqa: E402

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
    return result.source


SET_UP = "def main():\n    model, optimizer = amp.initialize(m, o)\n    "
MADE = "def make():\n    model, optimizer = amp.initialize(m, o)\n    return model, optimizer\n\ndef main():\n    "


@pytest.mark.parametrize(
    "set_up, function",
    [
        (SET_UP + "train(model, optimizer)\n", "main"),
        (SET_UP + "register(train)\n", "main"),
        (SET_UP + "Other(train).run()\n", "main"),
        (MADE + "model, optimizer = make()\n    train(model, optimizer)\n", "make"),
        (MADE + "if ready:\n        model, optimizer = make()\n    train(model, optimizer)\n", "make"),
    ],
)
def test_what_creates_the_scaler_declares_it_global_if_another_function_reads_it(set_up, function):
    new = migrated("def train(model, optimizer):" + STEP + "\n" + set_up)
    assert f"def {function}():\n    global scaler\n" in new and new.count("global") == 1
    assert "def train(model, optimizer):\n" in new and "    scaler.scale(loss).backward()\n" in new


def test_functions_inside_need_no_global_variable():
    new = migrated(
        "def main():\n    model, optimizer = amp.initialize(m, o)\n\n    def step():\n"
        + textwrap.indent(STEP, "    ")
        + "\n    run(step)\n"
    )
    assert "    def step():\n" in new and "scaler.scale(loss).backward()" in new and "global" not in new


def test_methods_share_global_variables():
    new = migrated(
        'class Trainer:\n    def __init__(self, model, optimizer, level):\n        """Set up."""\n'
        "        self.model, self.optimizer = amp.initialize(model, optimizer, opt_level=level)\n\n"
        "    def step(self):\n        loss = self.model(1)\n"
        "        with amp.scale_loss(loss, self.optimizer) as scaled:\n            scaled.backward()\n"
    )
    assert '        """Set up."""\n        global scaler, use_amp, amp_dtype\n' in new
    assert "        with torch.autocast(device_type, dtype=amp_dtype, enabled=use_amp):\n" in new
    assert "        scaler.scale(loss).backward()\n" in new


def test_a_class_that_sets_up_in_its_body_declares_the_scaler_global():
    new = migrated("def train(model, optimizer):" + STEP + SET_UP.replace("def main():", "class Trainer:"))
    assert "class Trainer:\n    global scaler\n" in new


SCRIPT = """
def step(model, optimizer, inputs):
    loss = model(inputs).sum()
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        scaled_loss.backward()
    optimizer.step()

def evaluate(model):
    with torch.no_grad():
        return model(torch.ones(1, 4))

def main(level):
    device = torch.device("cpu")
    model = torch.nn.Linear(4, 1).to(device)
    before = evaluate(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    model, optimizer = amp.initialize(model, optimizer, opt_level=level)
    [step(*each) for each in [(model, optimizer, torch.ones(2, 4))]]
    return before, evaluate(model)
"""


@pytest.mark.skipif(not hasattr(torch, "amp") or not hasattr(torch.amp, "GradScaler"), reason="torch 2.3 or later")
@pytest.mark.parametrize("level, dtype", [("O4", torch.bfloat16), ("O0", torch.float32)])
def test_functions_cast_as_the_one_that_sets_up_says_and_before_it_not_at_all(level, dtype):
    names = {}
    exec(migrated(SCRIPT), names)
    before, after = names["main"](level)
    assert before.dtype == torch.float32 and after.dtype == dtype
    assert after.item() == pytest.approx(before.item() - 0.5 * 2 * (4 + 1), rel=1e-2)
    assert names["device_type"] == "cpu"  # that of the device of main, on every machine


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
        ("device = torch.device('cuda')\n", "device_type = device.type\n"),
        ("device = 'cuda' if torch.cuda.is_available() else 'cpu'\n", "device_type = device\n"),
        ("device = pick()\n", ""),
        ("device = torch.device('cuda')\ndevice = other\n", ""),
    ],
)
def test_the_type_of_the_device_is_that_of_the_scripts_own_one_after_this_is_set(head, expected):
    new = migrated(head + "model, optimizer = amp.initialize(model, optimizer)\n" + textwrap.dedent(STEP))
    assert head + expected + "scaler = torch.amp.GradScaler(device_type)\n" in new
    assert "import torch\n\ndevice_type = " in new and new.count("device_type = ") == 1 + bool(expected)


def test_a_device_that_is_set_after_the_forward_pass_does_not_give_its_type():
    function = (
        "def test():\n    with torch.no_grad():\n        y = model(1)\n    device = torch.device('cpu')\n    return y\n"
    )
    new = migrated("model, optimizer = amp.initialize(model, optimizer)\n" + function)
    assert new.count("device_type = ") == 1  # after a use, it would be an unbound variable of the function


@pytest.mark.parametrize(
    "defined, count", [("", 1), ("def evaluate():\n    with torch.no_grad():\n        model(1)\n", 2)]
)
def test_a_function_that_sets_its_device_needs_no_type_for_the_module(defined, count):
    step = textwrap.indent("model, optimizer = amp.initialize(model, optimizer)\n" + textwrap.dedent(STEP), "    ")
    new = migrated(defined + "def main():\n    device = torch.device('cuda')\n" + step)
    assert "    device = torch.device('cuda')\n" in new and "    device_type = device.type\n" in new
    assert new.count("device_type = ") == count  # functions that read main's type when it runs need one before, too


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


CAST = "torch.autocast(device_type, dtype=torch.float16):\n"
EVALUATIONS = [
    (
        "    with torch.no_grad():\n        for x in data:\n            y = model(x)\n            print(y.argmax(1))\n",
        "    with torch.no_grad(), " + CAST + "        for x in data:\n            y = model(x)\n            print(",
    ),
    (
        "    model.eval()\n    for x, t in load():\n        y = model(x)\n        total += criterion(y, t).item()\n",
        "        with " + CAST + "            y = model(x)\n            total += ",
    ),
    (
        "    model.eval()\n    y = model(0)\n    if a:\n        y = model(b)\n    y = f(y)\n    return y\n",
        "            y = model(b)\n        y = f(y)\n    return y\n",
    ),
    (
        "    with torch.no_grad():\n        y = model(1)\n    for each in y:\n        print(softmax(each))\n",
        "    with torch.no_grad(), "
        + CAST
        + "        y = model(1)\n    for each in y:\n        print(softmax(each))\n",
    ),
    (
        "    model.eval()\n    y = model(1)\n    for epoch in range(9):\n        train()\n    print(sum(y))\n",
        "    with " + CAST + "        y = model(1)\n    for epoch in range(9):\n        train()\n    with ",
    ),
]


@pytest.mark.parametrize("body, expected", EVALUATIONS)
def test_evaluation_casts_blocks_without_gradients_and_elsewhere_what_computes_with_outputs(body, expected):
    new = migrated("def test(model):\n" + body + "\nmodel, optimizer = amp.initialize(model, optimizer)\ntest(model)\n")
    assert expected in new and new.count("torch.autocast(") == 1 + ("epoch" in body)
