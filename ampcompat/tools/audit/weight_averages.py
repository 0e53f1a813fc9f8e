"""Half averages of a model's weights (EMA, ``AveragedModel``), in modules, dicts and lists: what is written to them.

A half tensor that no optimizer has, with a weight's shape and almost its values, is a copy of that weight. It is looked
at where the script writes to it. An average moves by a small share of its distance to the weight, which half precision
rounds away: then it stands still where it differs from the weight. Copies that are overwritten do not.
"""

import weakref

import torch

from ...support.torch_compat.features import version_of
from .weight_updates import HALF, local, sampled

#: A copy's distance from its weight, as a share of the weight's norm, is at most this.
_CLOSE = 0.1


class WeightAverages:
    """Looks for half copies of weights when a step has ended, and then compares them before and after writes."""

    def __init__(self):
        self._copies = {}  # id(tensor) -> ``HalfCopy``

    def look(self, tensors, watched, names):
        """Add those of the ``tensors`` that are half copies of params; ``names``: ``{param: name}``.

        Args:
            watched: the ``WatchedOptimizer``s: what they and their optimizers keep is no copy of the script.
        """
        params = [param for each in watched for param in each.all_params()]
        others = {id(each) for param in params for each in (param, param.grad)}
        others.update(id(first) for each in watched for first in each.first.values())
        for state in [state for each in watched for state in each.optimizer.state.values()]:
            others.update(map(id, state.values() if isinstance(state, dict) else ()))
        alike = {}
        for param in params:
            alike.setdefault((param.shape, param.device), []).append(param)
        samples = {}
        for tensor in tensors:
            if id(tensor) in others or id(tensor) in self._copies or not _may_be_a_copy(tensor):
                continue
            key = tensor.shape, tensor.device
            if key not in samples and key in alike:
                samples[key] = torch.stack([sampled(each).float() for each in alike[key]])
            weight = _nearest(sampled(tensor).float(), samples[key]) if key in samples else None
            if weight is not None:
                weight = alike[key][weight]
                self._copies[id(tensor)] = HalfCopy(tensor, weight, names.get(weight, "?"))

    def compare(self, begins):
        """Look for writes since the last call; ``begins``: look for further ones."""
        with torch.no_grad():
            for copy in self._copies.values():
                copy.compare(begins)

    def standing_still(self):
        """Return (the names of weights whose averages mostly stand still, the share of elements of all averages)."""
        found = [(each.name, float(each.lost), float(each.meant)) for each in self._copies.values()]
        lost, meant = (sum(each[place] for each in found) for place in (1, 2))
        return [name for name, lost, meant in found if lost > meant / 2], lost / max(meant, 1)


class HalfCopy:
    """A half copy of a weight.

    Attributes:
        name: the weight's.
        meant: the number of elements that differed from the weight before a write, of all writes that were compared.
        lost: how many of these had not changed after it.
    """

    def __init__(self, tensor, weight, name):
        self._tensor, self._weight, self.name = weakref.ref(tensor), weight, name
        self._before = None  # (values, version)
        self.meant = self.lost = 0

    def compare(self, begins):
        """Compare with the values before, if the copy was written to; ``begins``: keep those of now."""
        tensor = self._tensor()
        if tensor is None or tensor.dtype not in HALF or self._weight.shape != tensor.shape:
            return
        if self._before is not None and self._before[1] != version_of(tensor):
            before = self._before[0]
            is_meant = before != local(self._weight).to(before.dtype)
            self.meant = self.meant + is_meant.sum()
            self.lost = self.lost + (is_meant & (local(tensor) == before)).sum()
            self._before = None
        if begins and self._before is None:
            self._before = local(tensor).clone(), version_of(tensor)


def _may_be_a_copy(tensor):
    if tensor.dtype not in HALF or tensor.grad_fn is not None or tensor.layout is not torch.strided:
        return False
    is_known = type(tensor) in (torch.Tensor, torch.nn.Parameter) or hasattr(tensor, "to_local")
    return is_known and tensor.device.type != "meta" and tensor.numel() > 0


def _nearest(sample, samples):
    """Return the position of the only weight that has almost a tensor's values; None if there is none, or several."""
    if sample.shape != samples.shape[1:]:
        return None
    close = (samples - sample).norm(dim=1) < _CLOSE * samples.norm(dim=1)
    found = close.nonzero().reshape(-1).tolist()
    return found[0] if len(found) == 1 else None
