"""What a script does with torch.amp: its autocast regions and its GradScalers."""

import ast

from .calls import argument
from .names import dotted, string

SCALERS = ("torch.amp.GradScaler", "torch.cuda.amp.GradScaler", "torch.cpu.amp.GradScaler")
REGIONS = ("torch.autocast", "torch.amp.autocast", "torch.cuda.amp.autocast", "torch.cpu.amp.autocast")
REGIONS += ("torch.amp.autocast_mode.autocast",)
#: The device of these regions, whose first argument is ``enabled``; that of the others is the device.
_DEVICES = {"torch.cuda.amp.autocast": "cuda", "torch.cpu.amp.autocast": "cpu"}
_DEFAULT_DTYPES = {"cuda": "torch.float16", "cpu": "torch.bfloat16"}


class TorchAmp:
    """The uses of torch.amp in a ``Source``.

    Attributes:
        regions, scalers: the calls of ``autocast`` and of ``GradScaler``.
        made_regions, made_scalers: a statement ``name = …`` -> the calls of them in its value.
    """

    def __init__(self, source):
        self._names = source.names
        self.regions, self.scalers = ([call for call in source.calls() if is_one(call)]
                                      for is_one in (self.is_region, self._is_scaler))  # fmt: skip
        self.made_regions, self.made_scalers = {}, {}
        for node in source.nodes:
            if isinstance(node, ast.Assign) and len(node.targets) == 1 and dotted(node.targets[0]):
                inner = list(ast.walk(node.value))
                for made, is_one in ((self.made_regions, self.is_region), (self.made_scalers, self._is_scaler)):
                    calls = list(filter(is_one, inner))
                    made.update({node: calls} if calls else {})

    def is_region(self, node):
        """Return whether a node is a call of ``autocast``."""
        return isinstance(node, ast.Call) and self._names.of(node.func) in REGIONS

    def _is_scaler(self, node):
        return isinstance(node, ast.Call) and self._names.of(node.func) in SCALERS

    def enabled(self, region):
        """Return the argument ``enabled`` of an autocast region; None if it is not given."""
        return argument(region, 0 if self._names.of(region.func) in _DEVICES else 2, "enabled")

    def dtype(self, region):
        """Return the full name of an autocast region's dtype; None if it is known only at run time."""
        dtype = argument(region, 1, "dtype")
        if dtype is not None:
            name = self._names.of(dtype)
            return "torch.float16" if name == "torch.half" else name if name.startswith("torch.") else None
        device = _DEVICES.get(self._names.of(region.func)) or string(argument(region, 0, "device_type"))
        return _DEFAULT_DTYPES.get(device)
