"""What a user does first with an installed ampcompat; run by .ci/package.sh in an empty folder."""

import importlib.metadata
import os
import shutil
import subprocess
import sys
import sysconfig

SCRIPT = """
import torch
from apex import amp

model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer = amp.initialize(model, optimizer, opt_level="O1", verbosity=0)
for _ in range(3):
    loss = model(torch.ones(4, 8)).pow(2).mean()
    optimizer.zero_grad()
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        scaled_loss.backward()
    optimizer.step()
print(model.weight.dtype, amp.__name__)
"""


def call(*command):
    """Run a command and return what it printed; its errors are shown, and fail the test."""
    print("$", " ".join(command))
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, universal_newlines=True).stdout


def main():
    """Import the installed package, call each command, and run a script for Apex in both ways."""
    import ampcompat

    folder = os.path.dirname(ampcompat.__file__)
    assert folder == os.path.join(sysconfig.get_paths()["purelib"], "ampcompat"), folder
    assert os.path.exists(os.path.join(folder, "py.typed"))
    version = importlib.metadata.version("ampcompat")
    assert version == ampcompat.__version__
    command = shutil.which("ampcompat", path=os.path.dirname(sys.executable))
    assert call(command, "--version") == f"ampcompat {version}\n"
    assert version in call(command, "info", "--table")
    with open("script.py", "w") as file:
        file.write(SCRIPT)
    assert call(command, "run", "script.py") == "torch.float32 apex.amp\n"
    assert call(command, "run", "--opt-level", "O2", "script.py") == "torch.float16 apex.amp\n"
    call(command, "install")
    assert call(sys.executable, "script.py") == "torch.float32 apex.amp\n"
    call(command, "uninstall")
    assert subprocess.run([sys.executable, "-c", "import apex"], stderr=subprocess.DEVNULL).returncode == 1
    assert "O2" in call(command, "ab", "--levels", "O0,O2", "--json", "report.json", "script.py")
    assert "O2" in call(command, "report", "report.json")
    assert "O5" in call(command, "forecast", "script.py")
    assert "nothing is wrong" in call(command, "audit", "script.py")


if __name__ == "__main__":
    main()
