"""Averages of a model's weights (EMA, ``AveragedModel``), in modules, dicts and lists: what is written to them.

A tensor that no optimizer has, with a weight's shape and almost its values, is a copy of that weight. It is looked at
where the script writes to it, by ``.data`` too, or replaces it by another tensor. An average moves by a small share of
its distance to the weight, which half precision rounds away: then it stands still where it differs from the weight.
Copies that are overwritten do not.
"""

import inspect
import weakref

import torch

from ...support.torch_compat.features import version_of
from .weight_updates import HALF, local, sampled

#: A copy's distance from its weight, as a share of the weight's norm, is at most this.
_CLOSE = 0.1

#: After so many looks, tensors that replace copies are not looked for any more.
_LOOKS = 3


class WeightAverages:
    """Looks for copies of weights when a step has ended, and then compares them before and after writes.

    Attributes:
        replaced: the ``WeightCopy`` objects whose tensor is gone: the next ``look`` may find another one.
    """

    def __init__(self):
        self.replaced = []
        self._copies = {}  # id(tensor) -> ``WeightCopy``
        self._ended = []  # those that are not looked for any more
        self._looks, self._notes_data = 0, False

    def look(self, tensors, watched, names, patches):
        """Add those of the ``tensors`` that are copies of params; ``names``: ``{param: name}``.

        Args:
            watched: the ``WatchedOptimizer``s: what they and their optimizers keep is no copy of the script.
            patches: undoes that ``.data`` of copies is noted.
        """
        params = [param for each in watched for param in each.all_params()]
        others = {id(each) for param in params for each in (param, param.grad)}
        others.update(
            id(own) for each in [*watched, *self._copies.values(), *self.replaced] for own in each.own_tensors()
        )
        for state in [state for each in watched for state in each.optimizer.state.values()]:
            others.update(map(id, state.values() if isinstance(state, dict) else ()))
        for key in others.intersection(self._copies):
            del self._copies[key]  # the weight of a model that trains since
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
                self._add(tensor, alike[key][weight], names)
        self._ended += self.replaced
        self.replaced = []
        self._looks += 1
        if self._copies and not self._notes_data:
            self._notes_data = True
            self._note_data(patches)

    def _add(self, tensor, weight, names):
        found = [copy for copy in self.replaced if copy.is_of(weight, tensor.dtype)]
        copy = min(found, key=lambda each: each.distance(tensor), default=None)
        if copy is None:
            copy = WeightCopy(tensor, weight, names.get(weight, "?"))
        else:
            self.replaced.remove(copy)
            copy.replace(tensor)
        self._copies[id(tensor)] = copy

    def _note_data(self, patches):
        data = inspect.getattr_static(torch.Tensor, "data")

        def get_data(tensor):
            alias = data.__get__(tensor, type(tensor))
            if id(tensor) in self._copies:
                self._copies[id(tensor)].note_alias(tensor, alias)
            return alias

        def set_data(tensor, values):
            data.__set__(tensor, values)
            if id(tensor) in self._copies:
                self._copies[id(tensor)].note_new_data(tensor)

        patches.set(torch.Tensor, "data", property(get_data, set_data, data.__delete__, data.__doc__))

    def compare(self, begins):
        """Look for writes since the last call; ``begins``: look for further ones."""
        for key, copy in list(self._copies.items()):
            if copy.is_gone():
                is_looked_for = copy.is_watched and self._looks < _LOOKS
                (self.replaced if is_looked_for else self._ended).append(self._copies.pop(key))
            else:
                copy.compare(begins)

    def standing_still(self):
        """Return (the names of weights whose averages mostly stand still, the share of elements of all averages)."""
        found = [(each.name, float(each.lost), float(each.meant)) for each in self._all()]
        lost, meant = (sum(each[place] for each in found) for place in (1, 2))
        return [name for name, lost, meant in found if lost > meant / 2], lost / max(meant, 1)

    def all(self):
        """Return the ``WeightCopy`` objects of averages: they differed from their weight when they were written."""
        return [copy for copy in self._all() if copy.differs]

    def _all(self):
        return [*self._copies.values(), *self.replaced, *self._ended]


class WeightCopy:
    """A copy of a weight.

    Attributes:
        name: the weight's.
        dtype, numel: the copy's.
        differs: whether it has differed from the weight after a write.
        meant: the number of elements that differed from the weight before a write, of all writes that were compared; 0
            if the copy is not half.
        lost: how many of these had not changed after it.
    """

    def __init__(self, tensor, weight, name):
        self._tensor, self._weight, self.name = weakref.ref(tensor), weight, name
        self.dtype, self.numel = tensor.dtype, tensor.numel()
        self._before = None  # (values, version)
        self._aliases = []  # (alias, version) of ``.data`` since the values were kept
        self._has_new_data = False  # ``.data`` was set since then
        self.meant = self.lost = 0
        self.differs = False

    @property
    def is_watched(self):
        """Whether the next call of ``compare`` looks for a write."""
        return self._before is not None

    def note_alias(self, tensor, alias):
        """Note an alias of the tensor, with its own version."""
        if self.is_watched and self._tensor() is tensor:
            self._aliases.append((alias, version_of(alias)))

    def note_new_data(self, tensor):
        """Note that ``.data`` of the tensor was set."""
        self._has_new_data = self._tensor() is tensor

    def own_tensors(self):
        """Return the copies that this object keeps."""
        return [self._before[0]] if self.is_watched and self._before[0] is not None else []

    def is_gone(self):
        """Return whether there is no such tensor any more."""
        return self._tensor() is None

    def is_of(self, weight, dtype):
        """Return whether it is a copy of a weight, in a dtype."""
        return self._weight is weight and self.dtype is dtype

    def distance(self, tensor):
        """Return how many elements of a tensor differ from the values before."""
        before = self._before[0]
        return 0 if before is None else int((local(tensor) != before).sum())

    def replace(self, tensor):
        """Compare with a tensor in the place of the one that is gone."""
        self._tensor, self._has_new_data = weakref.ref(tensor), True
        self.compare(begins=False)

    def compare(self, begins):
        """Compare with the values before, if the copy was written to; ``begins``: keep those of now."""
        tensor = self._tensor()
        if tensor is None or tensor.dtype is not self.dtype or self._weight.shape != tensor.shape:
            return
        if self.is_watched and self._is_written(tensor):
            before = self._before[0]
            self.differs = (sampled(tensor) != sampled(self._weight).to(tensor.dtype)).any() | self.differs
            if before is not None:
                is_meant = before != local(self._weight).to(before.dtype)
                self.meant = self.meant + is_meant.sum()
                self.lost = self.lost + (is_meant & (local(tensor) == before)).sum()
            self._before = None
        self._aliases, self._has_new_data = [], False
        if begins and not self.is_watched:
            self._before = local(tensor).clone() if tensor.dtype in HALF else None, version_of(tensor)

    def _is_written(self, tensor):
        pairs = [(tensor, self._before[1])] + self._aliases
        return self._has_new_data or any(version_of(each) != version for each, version in pairs)


def _may_be_a_copy(tensor):
    if not tensor.is_floating_point() or tensor.grad_fn is not None or tensor.layout is not torch.strided:
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
