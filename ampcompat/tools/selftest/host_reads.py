"""How often the host waits for a value from the device in a training step."""

import warnings

import torch

from ... import amp
from ...support.torch_compat import features
from ...trace.calls import OperationCalls
from .networks import Classifier, images
from .results import NOT_RUN, CheckResult
from .training import INIT_SCALE, REPORT, Setting, first_line, iterate


def host_reads(device, step):
    """Return how often ``step()`` makes the host wait for a value; None if this torch cannot tell.

    On CUDA, torch reports all operations that synchronize. On other devices, a dispatch mode counts the reads of single
    values.
    """
    if device.startswith("cuda") and hasattr(torch.cuda, "set_sync_debug_mode"):
        return _cuda_synchronizations(step)
    if not features.has_dispatch_modes():
        return None
    with Reads() as reads:
        step()
    return reads.count


class Reads(OperationCalls):
    """Counts the reads of single values.

    Attributes:
        count: how many there were.
    """

    def __init__(self):
        super().__init__()
        self.count = 0

    def called(self, function, args, kwargs):
        """Call an operation, and count it if it is a read."""
        self.count += function is torch.ops.aten._local_scalar_dense.default
        return function(*args, **kwargs)


def _cuda_synchronizations(step):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return sum("synchronizing CUDA operation" in str(each.message) for each in caught)


#: (name, make, most host reads per step): without ``found_inf``, the host must decide whether to step.
_OPTIMIZERS = (
    ("Adam(fused=True)", lambda params: torch.optim.Adam(params, lr=1e-3, fused=True), 0),
    ("SGD", lambda params: torch.optim.SGD(params, lr=1e-3, momentum=0.9), 1),
)


def check_host_reads(device, quick=False):
    """Yield rows for O1 and O2 with two optimizers: how often does the host wait for the device in a step?"""
    for setting in (Setting("O1"), Setting("O2")):
        for name, make, most in _OPTIMIZERS:
            case = f"{setting} {name}"
            lack = setting.lack(device) or _lack_of_optimizer(make, device)
            reads = None if lack else _reads_of(setting, make, device)
            if reads is None:
                yield CheckResult("host reads", case, NOT_RUN, lack or "this torch has no dispatch modes to count with")
                continue
            found = f"{reads:g} per step (at most {most})"
            yield CheckResult.of("host reads", case, reads <= most, found, REPORT, reads=reads)


def _lack_of_optimizer(make, device):
    param = torch.nn.Parameter(torch.ones(1, device=device))
    param.grad = torch.ones_like(param)
    try:
        make([param]).step()
    except (RuntimeError, TypeError, ValueError, NotImplementedError) as error:
        return first_line(error)
    return None


def _reads_of(setting, make, device):
    steps = 4
    with setting.opened():
        torch.manual_seed(0)
        model = Classifier().to(device)
        optimizer = make(model.parameters())
        amp.initialize(model, optimizer, init_scale=INIT_SCALE)
        batch = images(device, 0)
        for _ in range(3):
            iterate(model, optimizer, batch)
        reads = host_reads(device, lambda: [iterate(model, optimizer, batch) for _ in range(steps)])
    return None if reads is None else reads / steps
