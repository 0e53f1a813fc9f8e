"""The op table on CUDA, XPU and MPS without such a device: the dtypes that fake tensors get."""

import collections
import pathlib
import re
import warnings

import pytest
import torch
from helpers.fake_devices import FakeDevice, needs_fakes, reason_to_leave_out, why_no_fakes
from opened import PAIRS

from ampcompat.engine.casting import BACKENDS
from ampcompat.engine.op_table import expansion
from ampcompat.support.patching import PatchStack
from ampcompat.support.torch_compat import features
from ampcompat.tools.selftest.conformance import compare_all, functions
from ampcompat.tools.selftest.sample_arguments import CPU

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
#: torch 2.12 and before: fewer half kernels for the CPU.
LACKS_HALF_KERNELS = features.is_version_within(newest="2.12")
LINES = []


@pytest.fixture(scope="module", autouse=True)
def counts_are_reported(request):
    """Print one line per device, backend and dtype when the module is done, and what could not be called once."""
    yield
    with request.config.pluginmanager.get_plugin("capturemanager").global_and_fixture_disabled():
        print("\n" + "\n".join(collections.OrderedDict.fromkeys(LINES)))


def report(what, outcomes):
    """Keep the counts for ``counts_are_reported``, and the names of forms that could not be called, by reason."""
    lacking = len(outcomes.left_out)
    LINES.append("{}: {} forms agree, {} cannot be called".format(what, outcomes.counts["agrees"], lacking))
    by_reason = collections.OrderedDict()
    for (owner, name, _), reason in outcomes.left_out.items():
        by_reason.setdefault(reason, collections.OrderedDict())[f"{owner}.{name}"] = None
    LINES.extend("    {}: {}".format(reason, ", ".join(names)) for reason, names in by_reason.items())


def outcomes_on(device, backend_name, pair, every=1):
    backend = BACKENDS[backend_name](pair)
    backend.set_devices({device.name})
    with PatchStack() as patches, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, on deprecated names
        backend.open(patches)
        return compare_all(backend, FUNCTIONS[::every], pair, device, reason_to_leave_out)


@pytest.mark.parametrize("name, backend_name, pair_name, every", RUNS)
def test_every_form_has_the_dtype_of_the_table(name, backend_name, pair_name, every):
    lack = why_no_fakes(name)
    if lack:
        pytest.skip(lack)
    outcomes = outcomes_on(FakeDevice(name), backend_name, PAIRS[pair_name], every)
    report(f"fake {name}, {backend_name}, {pair_name}", outcomes)
    known = KNOWN_DIFFERENCES.get((name, backend_name), set())
    assert {key: problem for key, problem in outcomes.wrong.items() if key[1] not in known} == {}
    if not IS_OLD:
        assert {key[1] for key in outcomes.wrong} == known
    if every == 1:
        assert outcomes.counts["agrees"] > (10 if IS_OLD else 20) * len(outcomes.left_out)


def test_the_same_forms_agree_on_the_cpu():
    outcomes = outcomes_on(CPU, "native", PAIRS["float16"])
    report("cpu, native, float16", outcomes)
    lacking = [
        key for key, problem in outcomes.wrong.items() if LACKS_HALF_KERNELS and "not implemented for 'Half'" in problem
    ]
    assert {key: problem for key, problem in outcomes.wrong.items() if key not in lacking} == {}


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
