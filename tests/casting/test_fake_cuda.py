"""The op table on CUDA, XPU and MPS without such a device: the dtypes that fake tensors get."""

import pathlib
import re

import pytest
import torch
from helpers.fake_devices import FakeDevice, needs_fakes, reason_to_leave_out, why_no_fakes
from opened import outcomes_of

from ampcompat.diagnostics.selftest.conformance import functions
from ampcompat.engine.op_table import expansion
from ampcompat.support.torch_compat import features

pytestmark = needs_fakes

FUNCTIONS = functions()
#: (device, backend, low dtype, every how many-th function): each device with each backend and each dtype, each backend
#: with each dtype. Torch's autocast differs between devices; our wrappers ask only whether a tensor is on one of them.
RUNS = [("cuda", "native", "float16", 1), ("cuda", "patched", "bfloat16", 1)]
RUNS += [("xpu", "native", "bfloat16", 1), ("xpu", "patched", "float16", 8)]
RUNS += [("mps", "native", "float16", 1), ("mps", "patched", "bfloat16", 8)]
#: {(device, backend): names on which they differ from the table}
KNOWN_DIFFERENCES = {
    ("mps", "native"): {"conv_transpose3d"},  # float32: MPS has no half kernel for it, and its autocast knows
}
#: torch 2.8 and before: fewer meta kernels, MPS autocast without exceptions.
IS_OLD = features.is_version_within(newest="2.8")


@pytest.mark.parametrize("name, backend_name, pair_name, every", RUNS)
def test_every_form_has_the_dtype_of_the_table(name, backend_name, pair_name, every):
    lack = why_no_fakes(name)
    if lack:
        pytest.skip(lack)
    outcomes = outcomes_of((backend_name, pair_name), FUNCTIONS[::every], FakeDevice(name), reason_to_leave_out)
    known = KNOWN_DIFFERENCES.get((name, backend_name), set())
    assert {key: problem for key, problem in outcomes.wrong.items() if key[1] not in known} == {}
    if not IS_OLD:
        assert {key[1] for key in outcomes.wrong} == known
    if every == 1:
        assert outcomes.counts["agrees"] > (10 if IS_OLD else 20) * len(outcomes.left_out)


# -- coverage: the lists in torch's own header -------------------------------------------------------------------------

HEADER = pathlib.Path(torch.__file__).parent / "include" / "ATen" / "autocast_mode.h"
POLICIES = {
    "LOWER_PRECISION_FP": expansion.HALF,
    "FP32": expansion.FLOAT,
    "FP32_SET_OPT_DTYPE": expansion.FLOAT,
    "DIFFERENT_REDISPATCH_SIGNATURE": expansion.FLOAT,
    "PROMOTE": expansion.PROMOTE,
}
#: Operations of the header that Python reaches by functions of other names.
REACHED_BY = {
    "_convolution": "conv2d",
    "_thnn_fused_lstm_cell": "lstm_cell",
    "_thnn_fused_gru_cell": "gru_cell",
    "_scaled_dot_product_flash_attention": "scaled_dot_product_attention",
    "linalg_vecdot": "vecdot",
    "linalg_multi_dot": "multi_dot",
    "linalg_vector_norm": "vector_norm",
    "linalg_matrix_norm": "matrix_norm",
    "nll_loss2d": "nll_loss",
}
#: The table keeps Apex's rule where autocast has another.
OTHER_RULES = {"grid_sampler": "Apex casts grid_sample to float32; autocast promotes its inputs"}


def listed_in_header():
    """Return {operation: rule} of the lists in the header of the installed torch."""
    text = HEADER.read_text() if HEADER.exists() else ""
    found = {}
    for policy, rule in POLICIES.items():
        body = re.search(rf"#define AT_FORALL_{policy}\(_\)((?:.*\\\n)*.*)", text)
        for name in re.findall(r"_\((?:ADD_NS\()?(\w+)", body.group(1)) if body else ():
            found[name] = rule
    return found


def row_name(operation):
    if re.match("_?upsample_", operation):
        return "interpolate"
    return REACHED_BY.get(operation, operation)


def test_no_operation_that_torchs_autocast_lists_is_missing_in_the_table():
    listed = listed_in_header()
    if not listed:
        pytest.skip("this torch has no header with autocast's lists")
    table = {each.row.name: each.row.rule for each in FUNCTIONS}
    missing = [name for name in listed if row_name(name) not in table]
    assert missing == []
    other = {name for name, rule in listed.items() if table[row_name(name)] != rule}
    assert other == set(OTHER_RULES) & set(listed)
    assert len(listed) > 80
