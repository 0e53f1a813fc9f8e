"""``OptimizerRecord``: what amp knows of one optimizer. Its parts own one fact each.

    configuration   the opt level, the loss scalers and the limits of the ``amp.initialize`` that got the optimizer
    masters         which half param has which float32 master (``optimizer_masters``)
    gradients       what the gradients in ``.grad`` are multiplied by (``gradient_scale``: the table of its states)
    skips           the overflow checks that decide whether the next step is skipped (``overflow_check``)
    methods         the optimizer's own methods that ``replaced_methods.attach`` has replaced
    open_blocks     the ``scale_loss`` blocks that are open

Only what every optimizer has is used (``param_groups``, ``state``, ``step``, ``zero_grad``), never its class.
"""

import copy
import operator
from itertools import chain

import torch

from ...support.live_objects import WeakList
from ...support.torch_compat.thread_blocks import grad_enabled
from ..loss_scaling.overflow_check import StepSkips, groups_of
from ..masters.optimizer_masters import PARAMS, OptimizerMasters
from .amp_stash import STASH
from .gradient_scale import HeldGradients


def record_of(optimizer):
    """Return the ``OptimizerRecord`` of an optimizer; None if it did not go through ``amp.initialize``."""
    return getattr(getattr(optimizer, STASH, None), "record", None)


class OptimizerRecord:
    """One optimizer, as far as amp is concerned.

    Args:
        optimizer: has ``param_groups``, ``state``, ``step`` and ``zero_grad``.
        configuration: the ``Configuration`` of its ``amp.initialize``.
        session: the ``Session``.
    """

    def __init__(self, optimizer, configuration, session):
        self.optimizer = optimizer
        self.configuration = configuration
        self.session = session
        self.open_blocks = WeakList()  # a block that is abandoned within a generator dies with it
        self.methods = None  # ``replaced_methods.ReplacedMethods``
        self.is_running = False  # one of the optimizer's own methods
        self.begun_step = None  # (name of a method that steps, whether it was skipped): see ``step_or_skip``
        self.is_rounded = False  # the model by the step that ends, before the hooks of a script see it
        self.skips = StepSkips(optimizer, self.step_skipped)
        self.masters = OptimizerMasters(optimizer, configuration, session.masters)
        self.gradients = HeldGradients(self)
        self.params = []  # those of ``param_groups``, when ``follow_groups`` looked at them last
        self.process_groups = ()
        self.place = None  # of one of its params in a model: see ``replaced_params``

    def make_masters(self, originals, pairs=()):
        """Make the masters; ``masters.rollback`` undoes it, whatever has been reached.

        Args:
            originals: ``{id(param): (data, gradient)}`` from before the model was cast; they become the masters.
            pairs: the (model, master) pairs of a copied or pickled optimizer.
        """
        self.masters.make_new(originals, pairs)
        self.find_process_groups()

    def pairs(self):
        """Return the (model, master) pairs of its half params."""
        return self.masters.pairs()

    def unpaired_params(self):
        """Return the params that are their own masters."""
        return self.masters.unpaired_params()

    def leaf_params(self):
        """Return the params that backward accumulates gradients in: the model's half ones, and the own masters."""
        return [pair.model for pair in self.masters.pairs()] + self.masters.unpaired_params()

    def follow_groups(self):
        """Follow what has changed in ``param_groups``, also without ``add_param_group``."""
        params = list(chain.from_iterable(map(PARAMS, self.optimizer.param_groups)))
        if len(params) != len(self.params) or not all(map(operator.is_, params, self.params)):
            self.session.add_masters(self, self.masters.follow_groups())
            self.find_process_groups()
        if self.masters.chunks:
            self.masters.follow_state()

    def find_process_groups(self):
        """Find the groups whose ranks hold parts of the same gradients, again where params were added."""
        self.params = list(chain.from_iterable(map(PARAMS, self.optimizer.param_groups)))
        self.process_groups = groups_of(self.params)

    def has_state_to_update(self):
        """Return whether a pass or a step has more to do than plain torch: masters, scaled gradients, skipped steps."""
        return bool(self.masters or self.open_blocks) or self.gradients.are_scaled() or self.skips.has_checks()

    def step_skipped(self, loss_id, scaler):
        """Print that a step is skipped, and call the observers."""
        self.configuration.notices.overflow(loss_id, scaler)
        for observer in self.session.observers:
            observer.step_skipped(self.session, loss_id, scaler)

    def run(self, method):
        """Return ``method()``, one of the optimizer's own: without casts, and what it writes is not noted.

        An interrupted one of torch may leave gradients disabled.
        """
        session, was, self.is_running = self.session, self.is_running, True
        try:
            with session.masters.writes.paused, session.process_casts.backend.paused(), grad_enabled(
                torch.is_grad_enabled()
            ):
                return method()
        finally:
            self.is_running = was
            self.masters.follow_state()

    def finish_step(self, stepped):
        """Round the masters into the model if the optimizer ``stepped``; free gradients that nobody is to see."""
        if stepped and self.masters.chunks and not self.is_rounded:
            self.masters.finish_step()
        self.is_rounded = False
        if not self.configuration.shows_half_gradients:
            self.masters.drop_gradients(with_half=self.gradients.are_half_stepped_on())
        for observer in self.session.observers:
            observer.after_step(self)

    def copied_to(self, twin, memo):
        """Return the record of ``twin``, a deep copy of the optimizer that ``memo`` belongs to. No block is open."""
        pairs = [copy.deepcopy(tuple(pair), memo) for pair in self.pairs()]
        for _, master in pairs:  # torch copies the gradients of tensors, and not those of params
            master.grad = None
        record = OptimizerRecord(twin, self.configuration, self.session)
        record.make_masters({}, pairs)
        record.skips.continue_from(self.skips)
        record.masters.continue_from(self.masters)
        record.gradients.continue_from(self.gradients)
        return record


def prepared_params(optimizer):
    """Yield the params in ``param_groups``, with the gradients that a step would use."""
    record = record_of(optimizer)
    if record is not None:
        record.gradients.prepare_clipping()
    for group in optimizer.param_groups:
        yield from group["params"]
