"""``migrate`` on three scripts as users of Apex write them, and what a reviewer would look for in the result."""

import functools
import os
import re

import pytest
import torch
from helpers.half_kernels import trains_in

pytest.importorskip("libcst", reason="the extra `migrate` has LibCST")
if not hasattr(getattr(torch, "amp", None), "GradScaler") or not trains_in(torch.float16):
    pytest.skip("migrated scripts need torch 2.3 or later", allow_module_level=True)

from ampcompat.static_analysis import migrate as tool  # noqa: E402

migrate = functools.lru_cache(maxsize=None)(tool.migrate)  # tests read the same results
FOLDER = os.path.join(os.path.dirname(__file__), "user_scripts")
NAMES = ["classifier", "gan", "language_model"]


def text_of(name):
    with open(os.path.join(FOLDER, name + ".py"), encoding="utf-8") as file:
        return file.read()


@pytest.mark.parametrize("name", NAMES)
def test_the_new_script_reads_as_if_written_by_hand(name):
    old = text_of(name)
    result = migrate(old, name + ".py")
    new = result.source
    assert result.left == [] and migrate(new) == (new, [], [])
    assert re.findall(r"GradScaler\(.*enabled=False|\bapex\.|# ampcompat", new) == []
    assert [line for line in new.split("\n") if line != line.rstrip()] == []
    assert new.count("GradScaler(") == 1 and len(set(re.findall(r"torch\.autocast\(.*\)", new))) == 1
    assert "param_groups" not in new  # model.parameters()
    assert re.search(r"\n *device_type = device(\.type)?\n", new)  # the script's own device
    assert "torch.bfloat16 if " in new and 'in ("O4", "O5") else torch.float16' in new


def test_the_scaler_and_what_autocast_gets_are_global_where_another_function_reads_them():
    new = migrate(text_of("classifier")).source
    for line in (
        "def main():\n    global scaler, use_amp, amp_dtype, device_type\n",
        "use_amp = False\namp_dtype = torch.float16\n",
        "    with torch.no_grad(), torch.autocast(device_type, dtype=amp_dtype, enabled=use_amp):\n",
        "        with torch.autocast(device_type, dtype=amp_dtype, enabled=use_amp):\n            outputs",
        "def train_epoch(args, model, loader, criterion, optimizer, device):\n",
        '            load_scaler(scaler, checkpoint["amp"])\n',
        "        scaler.unscale_(optimizer)\n        torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)\n",
        '    use_amp = args.fp16 and args.opt_level != "O0"\n',
    ):
        assert line in new
    assert (
        "def build(args, ntoken):\n    global scaler, use_amp, amp_dtype\n" in migrate(text_of("language_model")).source
    )


def test_forward_passes_before_both_backward_passes_are_under_one_autocast():
    assert (
        "    with torch.autocast(device_type, dtype=amp_dtype, enabled=use_amp):\n"
        "        fake = netG(noise)\n"
        "        errD_real = criterion(netD(real), ones)\n"
        "        errD_fake = criterion(netD(fake.detach()), zeros)\n"
        "    netD.zero_grad()\n"
        "    scaler.scale(errD_real).backward()\n"
        "    scaler.scale(errD_fake).backward()\n"
    ) in migrate(text_of("gan")).source


def page():
    with open(os.path.join(FOLDER, "..", "..", "..", "docs", "migrate.md"), encoding="utf-8") as file:
        return file.read()


CLIPPING = """
model, optimizer = amp.initialize(model, optimizer, opt_level="O1")
for inputs, targets in batches:
    loss = torch.nn.functional.mse_loss(model(inputs), targets)
    optimizer.zero_grad()
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        scaled_loss.backward()
    torch.nn.utils.clip_grad_norm_(amp.master_params(optimizer), 1.0)
    optimizer.step()
"""


def test_the_example_of_the_docs_is_what_migrate_writes():
    new = re.search("```python\n(.*?)```", page(), re.DOTALL).group(1)
    made = new.partition("\nscaler = ")[0].partition('else "cpu"\n')[2]
    assert migrate("import torch\nfrom apex import amp\n" + made + CLIPPING).source == new
