"""What ``check`` finds wrong in scripts, and what it must not."""

import os
import re

import pytest
from checked import check, rules
from helpers.processes import ROOT

from ampcompat.static_analysis.rules import RULES

HEAD = "import torch\nfrom torch import nn\nfrom apex import amp\n"
LOOP = (
    HEAD
    + """
def train(model, optimizer, fp16, scheduler):
    model, optimizer = amp.initialize(model, optimizer, opt_level="{level}")
    loss = model()
    {code}
"""
)


def found(tmp_path, capsys, code, level="O2", head=""):
    lines = ("\n    ").join(code.strip("\n").split("\n"))
    report = check(tmp_path, capsys, train=head + LOOP.format(level=level, code=lines))
    return [rule for rule, _ in rules(report)]


IF = "if fp16:\n    with amp.scale_loss(loss, optimizer) as s:\n        s.backward()\n"
SCALED = "with amp.scale_loss(loss, optimizer) as scaled:\n    scaled.backward()\n"


@pytest.mark.parametrize(
    "code, expected",
    [
        (SCALED + "nn.utils.clip_grad_norm_(model.parameters(), 1)", ["clip-model-params"]),
        (SCALED + "nn.utils.clip_grad_norm_(amp.master_params(optimizer), 1)", []),
        (SCALED + "    nn.utils.clip_grad_norm_(amp.master_params(optimizer), 1)", ["clip-before-unscale"]),
        (SCALED + "loss.backward()", ["plain-backward"]),
        (SCALED + "    loss.backward()", ["plain-backward"]),
        (
            IF + "else:\n    loss.backward()",
            [],
        ),
        (IF + "if not fp16:\n    loss.backward()", []),
        (
            IF + "    return\nloss.backward()",
            [],
        ),
        (
            "if fp16 == 1:\n    with amp.scale_loss(loss, optimizer) as s:\n        s.backward()\n"
            "elif fp16 == 2:\n    loss.backward()",
            [],
        ),
        (IF + "if fp16 is None:\n    loss.backward()", []),
        (IF + "if fp16 == 2:\n    loss.backward()", ["plain-backward"]),
        (SCALED + "optimizer = torch.optim.SGD(model.parameters(), lr=1)", ["optimizer-after-initialize"]),
        (
            SCALED
            + "optimizer = torch.optim.SGD(model.parameters(), lr=1)\n"
            + "model, optimizer = amp.initialize(model, optimizer)",
            [],
        ),
        (SCALED + "torch.save({'o': optimizer.state_dict()}, 'f')", ["checkpoint-without-amp"]),
        (SCALED + "state = {'o': optimizer.state_dict()}\ntorch.save(state, 'f')", ["checkpoint-without-amp"]),
        (SCALED + "torch.save({'o': optimizer.state_dict(), 'amp': amp.state_dict()}, 'f')", []),
        (SCALED + "torch.save(model.state_dict(), 'f')", []),
        (SCALED + "save_checkpoint({'o': optimizer.state_dict()}, True)", ["checkpoint-without-amp"]),
    ],
)
def test_what_is_found_in_a_training_loop(tmp_path, capsys, code, expected):
    assert found(tmp_path, capsys, code) == expected


@pytest.mark.parametrize("level, expected", [("O1", []), ("O3", []), ("O2", ["clip-model-params"])])
def test_clipping_model_parameters_matters_where_there_are_master_weights(tmp_path, capsys, level, expected):
    code = SCALED + "nn.utils.clip_grad_norm_(model.parameters(), 1)"
    assert found(tmp_path, capsys, code, level) == expected


@pytest.mark.parametrize(
    "before, options, expected",
    [
        ("model = model.half()", "", ["half-before-initialize"]),
        ("model.half()", "", ["half-before-initialize"]),
        ("model = nn.Linear(1, 1).cuda().half()", "", ["half-before-initialize"]),
        ("model.half()\n    model.float()", "", []),
        ("model.half()\n    model = nn.Linear(1, 1)", "", []),
        ("if fp16:\n        model.half()", "", ["half-before-initialize"]),
        ("other.half()", "", []),
        ("model = nn.DataParallel(model)", "", ["wrapped-before-initialize"]),
        ("model = nn.DataParallel(model).cuda()", "", ["wrapped-before-initialize"]),
        ("model = nn.parallel.DistributedDataParallel(model)\n    model = model.to('cuda')", "",
         ["wrapped-before-initialize"]),
        ("model = nn.DataParallel(model)\n    model = model.module", "", []),
        ("if fp16:\n        return\n    if fp16:\n        model = nn.DataParallel(model)", "", []),
        ("", "'O2'", ["level-as-enabled"]),
        ("", "'O1'", []),
        ("", "True, 'O2'", []),
        ("", "'yes', opt_level='O2'", []),
        ("", "fp16", []),
    ],
)  # fmt: skip
def test_a_model_and_a_level_that_initialize_gets(tmp_path, capsys, before, options, expected):
    code = HEAD + f"def main(model, optimizer, fp16):\n    {before}\n    amp.initialize(model, optimizer, {options})\n"
    assert [rule for rule, _ in rules(check(tmp_path, capsys, train=code))] == expected


@pytest.mark.parametrize(
    "before, expected",
    [
        ("if args.fp16:  # mixed precision\n    ", "`if args.fp16`"),
        (
            "if args.cpu:\n    pass\nelif args.amp and not args.cpu:\n    ",
            "else of `if args.cpu` and `if args.amp and not args.cpu`",
        ),
        ("if args.fp32:\n    pass\nelse:\n    ", "else of `if args.fp32`"),
        ("if a:\n  if b == 1:\n    ", "`if a` and `if b == 1`"),
        ("", None),
        ("if amp is not None:\n    ", None),
        ("if __name__ == '__main__':\n    ", None),
        ("if args.fp16:\n  def train():\n    ", None),
    ],
)
def test_the_condition_that_initialize_stands_behind_is_told(tmp_path, capsys, before, expected):
    report = check(tmp_path, capsys, train=HEAD + before + "amp.initialize(model, optimizer)\n")
    found = [each for each in report["findings"] if each["rule"] == "conditional-initialize"]
    assert [each["message"].partition(": ")[0] for each in found] == ([expected] if expected else [])
    assert report["exit_code"] == 0


@pytest.mark.parametrize(
    "code, level, expected",
    [
        ("F.binary_cross_entropy(torch.sigmoid(x), y)", "O1", 1),
        ("F.binary_cross_entropy(torch.sigmoid(x).float(), y)", "O1", 0),
        ("nn.BCELoss()", "O1", 1),
        ("nn.BCEWithLogitsLoss()", "O1", 0),
        ("nn.BCELoss()", "O2", 0),
        ("amp.register_float_function(torch, 'sigmoid'); nn.BCELoss()", "O1", 0),
    ],
)
def test_binary_cross_entropy_matters_at_o1_for_half_inputs(tmp_path, capsys, code, level, expected):
    text = HEAD + f"model, optimizer = amp.initialize(model, optimizer, opt_level='{level}')\n{code}\n"
    assert [rule for rule, _ in rules(check(tmp_path, capsys, train=text))] == ["half-binary-cross-entropy"] * expected


def test_binary_cross_entropy_is_found_in_a_module_that_the_script_imports(tmp_path, capsys):
    report = check(
        tmp_path,
        capsys,
        train="from apex import amp\nfrom losses import loss\namp.initialize(model, optimizer)\n",
        losses="import torch.nn as nn\nloss = nn.BCELoss()\n",
        unrelated="import torch.nn as nn\nloss = nn.BCELoss()\n",
    )
    assert [(each["rule"], each["path"].endswith("losses.py")) for each in report["findings"]] == [
        ("half-binary-cross-entropy", True)
    ]


@pytest.mark.parametrize(
    "names, found",
    [
        ('"--local_rank"', True),
        ('"-r", "--local_rank"', True),
        ('"--local_rank", "--local-rank"', False),
        ('"--local-rank"', False),
        ('"--local_ranks"', False),
        ('"--local_rank", default=os.getenv("LOCAL_RANK", 0)', False),
    ],
)
def test_an_option_that_the_launchers_of_torch_2_do_not_pass(tmp_path, capsys, names, found):
    code = f"""
        from apex import amp
        parser.add_argument({names}, type=int)
        amp.initialize(model, optimizer)
    """
    report = check(tmp_path, capsys, train=code)
    assert rules(report) == ([("local-rank", 3)] if found else [])
    assert report["exit_code"] == 0


def test_methods_of_the_handle_of_2018_are_errors(tmp_path, capsys):
    code = """
        from apex import amp
        amp_handle = amp.init(enabled=True)
        optimizer = amp_handle.wrap_optimizer(optimizer)
        with amp_handle.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
    """
    report = check(tmp_path, capsys, train=code)
    assert rules(report) == [("old-handle", 4), ("old-handle", 5)]


def test_clipping_in_another_method_than_the_backward_pass(tmp_path, capsys):
    code = """
        from apex import amp
        class Runner:
            def __init__(self):
                self.model, self.optimizer = amp.initialize(self.model, self.optimizer, opt_level="O2")
            def backward(self, loss):
                with amp.scale_loss(loss, self.optimizer) as scaled:
                    scaled.backward()
            def step(self):
                clip_grad_norm_(self.model.parameters(), 1.0)
            def warm_up(self):
                self.loss().backward()
                clip_grad_norm_(self.model.parameters(), 1.0)
    """
    assert rules(check(tmp_path, capsys, train=code)) == [("clip-model-params", 10)]


@pytest.mark.parametrize(
    "code, severity",
    [
        ("from apex.transformer import parallel_state", "error"),
        (
            "try:\n    from apex.transformer import parallel_state\nexcept ImportError:\n    parallel_state = None",
            "note",
        ),
        ("try:\n    from apex.transformer import a\nexcept ImportError:\n    raise ImportError('install')", "error"),
        (
            "try:\n    from apex.transformer import a\nexcept ImportError:\n    print('install')\n    sys.exit(1)",
            "error",
        ),
        (
            "try:\n    from apex.contrib import fmha\nexcept ImportError:\n    fmha = None\nif fmha:\n    fmha.x()",
            "note",
        ),
        (
            "try:\n    from apex.contrib import sparsity\n    HAS = True\nexcept ImportError:\n    HAS = False\n"
            "def prune():\n    if HAS:\n        sparsity.ASP.x()",
            "note",
        ),
        ("try:\n    import apex\nexcept ImportError:\n    apex = None\nif apex:\n    apex.transformer.x()", "error"),
        ("def make():\n    from apex.contrib.sparsity import ASP", "warning"),
        ("import scaled_masked_softmax_cuda", "error"),
    ],
)
def test_how_bad_a_part_is_that_is_not_carried(tmp_path, capsys, code, severity):
    findings = check(tmp_path, capsys, train=code)["findings"]
    assert [(each["rule"], each["severity"]) for each in findings] == [("not-carried", severity)]
    assert "use " in findings[0]["message"]


def test_a_folder_named_apex_next_to_the_script_is_an_error(tmp_path, capsys):
    (tmp_path / "apex").mkdir()
    (tmp_path / "apex" / "__init__.py").write_text("from apex import anything\n")
    report = check(tmp_path, capsys, train="from apex import amp\n")
    assert [(each["rule"], each["severity"]) for each in report["findings"]] == [("apex-folder", "error")]
    assert len(report["uses"]) == 1  # the copy itself is not read


def test_the_page_lists_every_rule_with_its_severity():
    with open(os.path.join(ROOT, "docs", "apex_scripts.md"), encoding="utf-8") as file:
        rows = re.findall(r"^\| (`.+?`) \| (\w+) \|", file.read(), re.MULTILINE)
    listed = [(name, severity) for names, severity in rows for name in re.findall(r"`([\w-]+)`", names)]
    assert sorted(listed) == sorted((name, rule.severity) for name, rule in RULES.items())


@pytest.mark.parametrize(
    "imports, base, method, found",
    [
        ("import apex", "apex.parallel.DistributedDataParallel", "allreduce_bucket", True),
        ("from apex.parallel.distributed import DistributedDataParallel as DDP", "DDP", "create_hooks", True),
        ("import apex", "apex.parallel.DistributedDataParallel", "forward", False),
        (
            "import apex; from torch.nn.parallel import DistributedDataParallel",
            "DistributedDataParallel",
            "create_hooks",
            0,
        ),
    ],
)
def test_subclasses_that_reduce_gradients_themselves_are_refused(tmp_path, capsys, imports, base, method, found):
    code = f"{imports}\n\n\nclass Mine({base}):\n    def {method}(self, bucket):\n        pass\n"
    assert rules(check(tmp_path, capsys, train=code)) == ([("ddp-subclass", 5)] if found else [])
