"""What ``initialize`` finds out about this torch, it finds out without the functions that clients wrap."""

from helpers import forked

NO_BACKWARD = """
import sys
import torch
import ampcompat
from ampcompat import amp
from ampcompat.errors import AmpValueError

calls = []

def forbidden():
    def backward(*args, **kwargs):
        calls.append(args)
        raise KeyboardInterrupt  # no probe takes that for an answer

    return backward

class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.LayerNorm(4))
        self.recurrent = torch.nn.LSTM(4, 4)

torch.Tensor.backward, torch.autograd.backward, torch.autograd.grad = forbidden(), forbidden(), forbidden()
for level in ("O0", "O1", "O2", "O3", "O4", "O5"):
    for backend in ("native", "patched"):
        for kind in (torch.optim.SGD, torch.optim.Adam):
            model = Network()
            with ampcompat.session(backend=backend, verbosity=0):
                try:
                    optimizer = kind(model.parameters(), lr=0.1)
                    amp.initialize(model, optimizer, opt_level=level, keep_fp32=torch.nn.LayerNorm)
                except AmpValueError as error:  # this torch has no autocast in this dtype
                    print(level, backend, error)
assert not calls
"""


def test_initialize_calls_no_backward(tmp_path):
    # In a new process, where no feature of this torch has been probed and cached.
    script = tmp_path / "script.py"
    script.write_text(NO_BACKWARD)
    ran = forked.run(forked.script, script)
    assert ran.returncode == 0, ran.stdout + ran.stderr
