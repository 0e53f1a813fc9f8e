"""``selftest``: check that ampcompat works with the torch and the device of this machine."""

import functools

from ..diagnostics.selftest import runner
from ..support import files, terminal
from ..support.torch_compat import features
from .argument_parser import CommandParser
from .run_command import check_device


def selftest(arguments):
    """Run the self-test; return 1 if a check failed."""
    parser = CommandParser(prog="ampcompat selftest", description="Check ampcompat with this torch on this device.")
    parser.add_argument("--device", help="cpu, cuda, cuda:1, xpu, mps, xla; the accelerator if there is one")
    parser.add_argument("--quick", action="store_true", help="check float16 only, with fewer steps")
    parser.add_output("--json", metavar="FILE", help="write the report there, to attach to an issue")
    stated = parser.parse_args(arguments)
    device = stated.device or features.available_devices()[-1]
    check_device(parser, device)
    report = runner.run(device, stated.quick, functools.partial(print, flush=True), terminal.columns(120))
    if stated.json:
        files.write(stated.json, runner.to_json(report))
        print(f"wrote {stated.json}")
    return 1 if report["counts"].get("failed") else 0
