"""What ``check`` says of scripts without Apex: which levels can be forced on them, how, and what prevents others."""

import pytest
from checked import check, rules, write

from ampcompat.cli import main

HEAD = "import torch\nfrom torch import nn\nmodel = nn.Linear(4, 1)\n"
LOOP = "for batch in batches:\n    model(batch).sum().backward()\n    optimizer.step()\n"
SGD = "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
SAM = """
class SAM(torch.optim.Optimizer):
    def second_step(self):
        self.base_optimizer.step()
optimizer = SAM(model.parameters(), torch.optim.SGD)
"""
HOOK = """
def hook(param):
    optimizers[param].step()
model.weight.register_post_accumulate_grad_hook(hook)
"""
FUNCTIONAL = "from torch.func import grad\n" + SGD + "gradients = grad(f)(p)\n"
ALL = ["O0", "O1", "O2", "O3", "O4", "O5"]


def levels(report):
    return [each["levels"] for each in report["forced"]]


def test_the_commands_for_a_script_that_trains(tmp_path, capsys):
    write(tmp_path, {"train.py": HEAD.replace("4, 1)", "4, 1).cuda()") + SGD + LOOP})
    path = tmp_path / "train.py"
    assert main(["check", str(path)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("Nothing of Apex is used here. Scripts that train without it: 1.\n")
    assert f"  {path}: O0, O1, O2, O3, O4, O5\n" in out
    for command in (
        f"run --opt-level O5 {path} ARGS",
        f"run --opt-level O5 --device cpu {path} ARGS",
        f"ab --levels O0,O1,O5 {path} ARGS",
        f"migrate --to-level O5 {path}",
    ):
        assert f"ampcompat {command}\n" in out


@pytest.mark.parametrize(
    "code, rule, possible",
    [
        (SGD + LOOP, None, ALL),
        (SGD + LOOP + "model.half()\n", "cast-by-hand", []),
        (SGD + LOOP + "model.to(torch.bfloat16)\n", "cast-by-hand", []),
        ("model.half()\n" + SGD + LOOP, "half-weights-trained", ALL),
        (SGD + LOOP + "copy.deepcopy(model).half()\n", None, ALL),
        ("x = torch.zeros(3, requires_grad=True)\noptimizer = torch.optim.Adam([x])\n" + LOOP,
         "optimizer-of-tensors", []),
        ("optimizer = torch.optim.LBFGS([x.requires_grad_()])\n" + LOOP, "optimizer-of-tensors", []),
        (FUNCTIONAL + "optimizer.step()\nif __name__ == '__main__': f()\n",
         "functional-gradients", []),
        (FUNCTIONAL + LOOP, None, ALL),
        (HOOK + SGD + LOOP, "step-in-backward", ["O0", "O3", "O4", "O5"]),
        (SAM + LOOP, "inner-step", ["O0", "O1", "O3", "O4"]),
        ("from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\nmodel = FSDP(model)\n" + SGD + LOOP,
         "first-fsdp", []),
    ],
)  # fmt: skip
def test_what_prevents_a_level(tmp_path, capsys, code, rule, possible):
    report = check(tmp_path, capsys, train=HEAD + code)
    assert levels(report) == [possible] and report["exit_code"] == (rule == "half-weights-trained")
    assert [name for name, _ in rules(report)] == [rule] * (rule is not None)


def test_the_suggested_level_can_be_forced(tmp_path, capsys):
    report = check(tmp_path, capsys, train=HEAD + SAM + LOOP)
    assert report["forced"][0]["command"].startswith("ampcompat run --opt-level O4 ")
    assert " --levels O0,O1 " in report["forced"][0]["compare"]


def test_a_loop_in_another_file_of_the_code_base_counts(tmp_path, capsys):
    write(
        tmp_path, {"lib/__init__.py": "", "lib/loop.py": "def fit(model):\n    model().backward()\n    model.half()\n"}
    )
    report = check(
        tmp_path, capsys, train="from lib.loop import fit\nif __name__ == '__main__':\n    fit()\n", other="x = 1\n"
    )
    assert [each["path"].rpartition("/")[2] for each in report["forced"]] == ["train.py"]


def test_a_trainer_is_named_and_has_no_line_to_write_the_level_into(tmp_path, capsys):
    code = "from transformers import Trainer\nif __name__ == '__main__':\n    Trainer(model).train()\n"
    (found,) = check(tmp_path, capsys, train=code)["forced"]
    assert found["trainer"] == "transformers.Trainer" and found["keep"] == "" and "O5" in found["command"]


@pytest.mark.parametrize("code", ["from apex import amp\n", "from ampcompat import amp\n"])
def test_scripts_with_amp_have_levels_already(tmp_path, capsys, code):
    assert check(tmp_path, capsys, train=code + HEAD + SGD + LOOP)["forced"] == []


@pytest.mark.parametrize(
    "call, is_found",
    [
        ("loss.backward(loss)", True),
        ("loss.backward(torch.ones_like(loss))", True),
        ("engine.backward(loss)", False),
        ("engine.backward(engine.loss)", False),
        ("engine.backward(engine(batch).sum())", False),
    ],
)
def test_a_backward_pass_from_a_gradient_of_the_loss_is_one_and_that_of_an_engine_is_not(
    tmp_path, capsys, call, is_found
):
    report = check(tmp_path, capsys, train=HEAD + SGD + f"for batch in batches:\n    {call}\n    optimizer.step()\n")
    assert levels(report) == [ALL] * is_found


def test_evaluation_alone_is_no_training(tmp_path, capsys):
    report = check(tmp_path, capsys, train=HEAD + "if __name__ == '__main__':\n    model(batch)\n")
    assert report["forced"] == [] and report["verdict"] == "Nothing of Apex is used here."


def test_a_file_that_is_nested_too_deeply_does_not_stop_the_report(tmp_path, capsys):
    nested = "if x == 0:\n    pass\n" + "".join(f"elif x == {each}:\n    pass\n" for each in range(3000))
    report = check(tmp_path, capsys, train=HEAD + SGD + LOOP, deep=nested + "loss.backward()\n")
    assert [each["path"].rpartition("/")[2] for each in report["forced"]] == ["train.py"]
