"""How long ``check`` takes on 10,000 files, written to a temporary folder, one process: rows as they are measured.

Of real code bases a few files in a hundred use Apex, with about ten uses each; here each has thirty. Run as
``python benchmarks/check_speed.py [FILES]``.
"""

import os
import sys
import tempfile
import time

from ampcompat.static_analysis.check import check

PLAIN = (
    "import os\n\n\ndef function_{0}(value):\n    for index in range(value):\n        print(os.sep, index, {0})\n" * 20
)
TRAINING = (
    """
import torch
from apex import amp
from apex.parallel import DistributedDataParallel as DDP

def main(args, model, optimizer, loader):
    model, optimizer = amp.initialize(model, optimizer, opt_level=args.opt_level)
    model = DDP(model)
    for inputs, targets in loader:
        loss = torch.nn.functional.cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        if args.fp16:
            with amp.scale_loss(loss, optimizer) as scaled_loss:
                scaled_loss.backward()
            torch.nn.utils.clip_grad_norm_(amp.master_params(optimizer), 1.0)
        else:
            loss.backward()
        optimizer.step()
"""
    * 5
)


def measure(count, share):
    """Print the seconds that ``check`` takes on ``count`` files, a share of which use Apex."""
    with tempfile.TemporaryDirectory() as folder:
        for number in range(count):
            path = os.path.join(folder, f"package_{number // 100}")
            os.makedirs(path, exist_ok=True)
            text = TRAINING if number < share * count else PLAIN.format(number)
            with open(os.path.join(path, f"module_{number}.py"), "w", encoding="utf-8") as file:
                file.write(text)
        begin = time.process_time()
        report = check([folder])
        seconds = time.process_time() - begin
    print(f"{count:7} files, {share:3.0%} with Apex: {seconds:6.2f} s, {len(report.uses)} uses", flush=True)


if __name__ == "__main__":
    files = int(sys.argv[1]) if len(sys.argv) > 1 else 10000
    for share in (0.0, 0.02, 0.1):
        measure(files, share)
