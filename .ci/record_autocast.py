"""Records which rows of the op table torch's autocast applies by itself, in the installed torch.

    python .ci/record_autocast.py           # print how many, by device
    python .ci/record_autocast.py --write   # and write them to ampcompat/engine/op_table/casts_by_torch_autocast.py

Only rows that cast to one dtype are looked at, and of these only the ones that call no other row whose casts would undo
their own. On the CPU a row is called under autocast alone, with inputs in each dtype and mixed, in float16 and in
bfloat16: dtype, values and gradients must be what the row says. Without a GPU, CUDA is recorded by the dtypes of fake
tensors, and only for operations that autocast's lists in torch's own header name.
"""

import argparse
import collections
import os
import pathlib
import sys
import textwrap
import warnings

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "casting")]
os.environ["AMPCOMPAT_HALF_MATH"] = "off"

from helpers.fake_devices import FakeDevice, why_no_fakes  # noqa: E402
from test_fake_cuda import listed_in_header, row_name  # noqa: E402

from ampcompat.diagnostics.selftest import conformance, sample_arguments  # noqa: E402
from ampcompat.diagnostics.selftest.sample_arguments import case_of  # noqa: E402
from ampcompat.engine.casting import NativeBackend  # noqa: E402
from ampcompat.engine.op_table import expansion  # noqa: E402
from ampcompat.engine.op_table.casts_by_torch_autocast import ROWS_OF_AUTOCAST  # noqa: E402
from ampcompat.opt_levels import BFLOAT16, HALF  # noqa: E402
from ampcompat.support.patching import PatchStack  # noqa: E402
from ampcompat.support.torch_compat import features  # noqa: E402

FILE = ROOT / "ampcompat" / "engine" / "op_table" / "casts_by_torch_autocast.py"
HEAD = '''"""The rows of the op table that torch's autocast applies by itself, by release and device: data.

Written by ``.ci/record_autocast.py``, which says when a row is among them.
"""

# ("RELEASE DEVICE, ...", owner, names)
ROWS_OF_AUTOCAST = (
'''


#: Rows under other names than in the header.
LISTED_AS = {"__matmul__": "matmul", "__rmatmul__": "matmul", "__pow__": "pow", "__rpow__": "pow"}


def candidates():
    rules = (expansion.HALF, expansion.FLOAT)
    found = [each for each in conformance.functions() if each.row.rule in rules and each.row.name_for_autocast]
    return [each for each in found if case_of(each.row) is not None]


def applied_by_autocast(function, pair, device):
    """Return whether autocast alone gives what a row says, whatever the dtypes of the inputs."""
    backend = NativeBackend(pair, rows=())
    backend.set_devices({device.name})
    with PatchStack() as patches:
        backend.open(patches)
        for kind in sample_arguments.KINDS:
            try:
                outcome, _ = conformance.compare(backend, function, case_of(function.row), kind, pair, device)
            except Exception:  # a form that cannot be called is not known to be cast
                return False
            if outcome == conformance.DIFFERS:
                return False
    return True


def rows_on(device, table):
    """Return the names of the rows that autocast applies on a device, in both dtypes."""
    return {
        each.row.name_for_autocast
        for each in table
        if all(applied_by_autocast(each, pair, device) for pair in (HALF, BFLOAT16))
    }


def recorded():
    """Return {device: names of rows} of the installed torch."""
    table = candidates()
    found = {"cpu": rows_on(sample_arguments.CPU, table)}
    if why_no_fakes("cuda") is None:
        listed = set(map(row_name, listed_in_header()))
        found["cuda"] = rows_on(
            FakeDevice("cuda"), [each for each in table if LISTED_AS.get(each.row.name, each.row.name) in listed]
        )
    return found


def write(found):
    """Write the file again, with the records of other releases as they are."""
    release = ".".join(features.version().split(".")[:2])
    places = collections.defaultdict(set)  # row -> {"RELEASE DEVICE"}
    for which, owner, names in ROWS_OF_AUTOCAST:
        for name in names.split():
            places[owner, name].update(each for each in which.split(", ") if each.split()[0] != release)
    for device, rows in found.items():
        for row in rows:
            places[tuple(row.rsplit(".", 1))].add(f"{release} {device}")
    groups = collections.defaultdict(list)
    for (owner, name), which in places.items():
        if which:
            groups[tuple(sorted(which)), owner].append(name)
    lines = [HEAD]
    for (which, owner), names in sorted(groups.items()):
        text = textwrap.wrap(" ".join(sorted(names)), 100)
        quoted = "\n".join('        "{}{}"'.format(line, "" if line is text[-1] else " ") for line in text)
        lines.append(f'    (\n        "{", ".join(which)}",\n        "{owner}",\n{quoted},\n    ),\n')
    FILE.write_text("".join(lines) + ")\n", encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--write", action="store_true", help=f"write {FILE.name}")
    options = parser.parse_args()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, on deprecated names
        found = recorded()
    for device, rows in found.items():
        print(f"torch {features.version()}, {device}: {len(rows)} rows of {len(candidates())}")
    if options.write:
        write(found)


if __name__ == "__main__":
    main()
