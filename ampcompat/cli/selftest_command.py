"""``selftest``: check that ampcompat works with the torch and the device of this machine."""

import functools

from ..errors import AmpError
from ..support import terminal
from ..support.torch_compat import devices, features
from ..tools.selftest import runner
from .argument_parser import CommandParser


def selftest(arguments):
    """Run the self-test; return 1 if a check failed."""
    parser = CommandParser(prog="ampcompat selftest", description="Check ampcompat with this torch on this device.")
    parser.add_argument("--device", help="cpu, cuda, cuda:1, xpu, mps, xla; the accelerator if there is one")
    parser.add_argument("--quick", action="store_true", help="check float16 only, with fewer steps")
    parser.add_output("--json", metavar="FILE", help="write the report there, to attach to an issue")
    stated = parser.parse_args(arguments)
    device = stated.device or features.available_devices()[-1]
    if not devices.is_available(device.partition(":")[0]):
        available = ", ".join(features.available_devices())
        parser.error(f"--device {device}: not available to this torch, only {available}.")
    try:
        show = functools.partial(print, flush=True)
        report = runner.run(device, stated.quick, show, terminal.columns(120))
    except AmpError as error:
        parser.error(str(error))
    if stated.json:
        parser.write_file(stated.json, runner.to_json(report))
        print(f"wrote {stated.json}")
    return 1 if report["counts"].get("failed") else 0
