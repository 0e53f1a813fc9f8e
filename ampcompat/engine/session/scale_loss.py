"""``BackwardPass``, the context manager of one ``scale_loss`` block."""

import functools
import operator
import warnings

import torch

from ...errors import AmpError
from ...support import tensor_lists
from ...support.torch_compat.thread_blocks import grad_enabled
from ..loss_scaling.loss_scaler import is_one
from ..loss_scaling.overflow_check import check_overflow, defer_check
from ..masters.grad_of_half_params import is_unchanged, mark_of
from ..optimizers.gradient_scale import NumberedLoss
from ..optimizers.replaced_methods import client_method
from .optimizers_without_amp import leaves_of
from .untrained_params import UntrainedPass

_CONFIGURATION = operator.attrgetter("configuration")


class BackwardPass:
    """A context manager that yields the scaled loss.

    Blocks may be nested on one optimizer if they share a loss scaler. Its gradients are unscaled and checked for
    overflow when the last of them ends, whatever the order of the backward passes in them.

    If the body raises, gradients are unscaled, but not checked. Nor is there a check after a pass that
    DistributedDataParallel did not reduce, since ranks would differ: the next pass that is reduced, or the step, checks
    both. Gradients that ``fully_shard`` did not reduce stay scaled until then.

    Args:
        configuration: the ``Configuration`` of the first optimizer: the policy of this pass.
        records: of the optimizers whose params the pass reaches.
        adopted: those among them that ``initialize`` did not get, and no earlier pass.
        delay_unscale: see ``amp.scale_loss``.
        untrained_leaves: see ``Session.scale_loss``.
    """

    def __init__(
        self,
        session,
        configuration,
        loss,
        loss_id,
        scaler,
        records,
        adopted=(),
        delay_unscale=False,
        delay_overflow_check=False,
        untrained_leaves=(),
    ):
        self.configuration = configuration
        self.loss = loss
        self.loss_id = loss_id
        self.scaler = scaler
        self.records = records
        self.delay_unscale = delay_unscale
        self.delay_overflow_check = delay_overflow_check
        self.high = configuration.policy.dtypes.high
        self.scale = None
        self.overflow_check = None
        self._untrained_leaves = untrained_leaves
        self._session = session
        self._process_casts = session.process_casts
        self._ddp_wrappers = session.ddp_wrappers
        self._adopted = adopted
        self._others = ()  # (record, its gradients before) of other optimizers, whose params the pass may reach too
        self._untrained = ()  # the ``UntrainedPass`` of each configuration, that of other optimizers last
        self._leaves = None  # returns ``leaves_of`` the loss; None if there are no other optimizers
        self._left = None  # (param, mark of its gradient) pairs of when the session has ended, within this block

    def __enter__(self):
        around = [block for record in self.records for block in record.open_blocks]
        self.scale = self.scaler.scale_now()
        if around or self._session.sharded_models.exist:
            self.scale = self._scale_within(around)
        for observer in self._session.observers:
            observer.before_backward(self)
        self._begin([record for record in self.records if not record.open_blocks] if around else self.records)
        if not is_one(self.scale):
            self._others = self._others_before()
            self._untrained = self._begin_untrained()
        loss = self.loss if self.loss.dtype is self.high else self.loss.to(self.high)
        for record in self.records:
            record.open_blocks.add(self)
        if not self.scaler.dynamic and is_one(self.scale):
            if not any([record.configuration.policy.master_weights for record in self.records]):
                return loss  # itself, not a product that scripts may change in place: as in Apex
        return loss * (self.scale.to(loss.device) if isinstance(self.scale, torch.Tensor) else self.scale)

    def _scale_within(self, around):
        """Return the scale of this pass, that of the blocks around it if there are any.

        Raises:
            AmpError: gradients of two scales would be added up.
        """
        for block in around:
            if block.scaler is not self.scaler and not (is_one(block.scale) and is_one(self.scale)):
                raise AmpError(
                    f"amp.scale_loss(loss_id={self.loss_id}) was entered inside of "
                    f"amp.scale_loss(loss_id={block.loss_id}) with the same optimizer: gradients of two loss scales "
                    "would add up. Close the first block before, or use one block for the sum of the losses."
                )
        scales = [block.scale for block in around if block.scaler is self.scaler]
        scales += self._session.sharded_models.scales(self.records)
        return scales[0] if scales else self.scale

    def _begin(self, records):
        """Bring gradients of earlier passes to the scale of this one; ``records`` have no block around it."""
        by_client, must_rescale = [], False
        for record in records:
            record.gradients.begin()
            by_client.append(client_method(record, "_prepare_amp_backward"))
            must_rescale = must_rescale or by_client[-1] is not None or record.gradients.has_gradients_to_rescale()
        if must_rescale:
            with self._process_casts.paused(), grad_enabled(False):
                self._rescale(records, by_client)

    def _rescale(self, records, by_client):
        are_local = self._ddp_wrappers.have_unreduced_gradients(records)
        own = [record for record, prepare in zip(records, by_client) if prepare is None]
        seen, unscaled, delayed = set(), set(), {}
        for record in own:
            loss = record.gradients.unscale_delayed(self.scaler, self.scale, seen, unscaled)
            if loss is not None:
                self._ddp_wrappers.move_to_masters([record])
                delayed.setdefault(loss, []).append(record)
        for loss, of_loss in delayed.items():
            if loss.scaler is not self.scaler:
                (defer_check if are_local else check_overflow)(loss.scaler, loss.loss_id, of_loss)
        for record, prepare in zip(records, by_client):
            if prepare is None:
                record.gradients.enter(self.scaler, self.scale, seen, are_local)
            elif not (self.delay_unscale or record.gradients.are_delayed()):
                prepare()

    def _others_before(self):
        """Return (record, gradients) of optimizers that are not given: the pass may leave scaled gradients there."""
        others = []
        for record in self._session.records:
            before = None if record in self.records else record.gradients.before_pass_of_others()
            if before is not None:
                others.append((record, before))
        return others

    def _begin_untrained(self):
        session, found, known = self._session, [], set()
        for each in dict.fromkeys([self.configuration, *map(_CONFIGURATION, self.records)]):
            params = each.untrained.params(session, each)
            if known:  # those of another configuration may be among them
                params = [param for param in params if id(param) not in known]
            if params:
                found.append((each.untrained.passes, params))
                known.update(map(id, params))
        others = [leaf for leaf in self._untrained_leaves if id(leaf) not in known] if self._untrained_leaves else []
        if session.optimizers_without_amp.exist(session.patches):
            self._leaves = functools.lru_cache(maxsize=None)(functools.partial(leaves_of, self.loss))
            others += self._others_reached(known.union(map(id, others)))
        if others or self._leaves is not None:
            found.append((session.optimizers_without_amp.passes, others))
        if not found:
            return ()
        with self._process_casts.paused():
            return [UntrainedPass(params, self.scale, passes) for passes, params in found]

    def _others_reached(self, known):
        """Return params of optimizers that amp did not get, which have to be rescaled now and are not ``known``."""
        reached = self._session.optimizers_without_amp.params_reached_by(self._leaves, self._session)
        return [param for key, param in {id(param): param for param in reached}.items() if key not in known]

    def _end_untrained(self):
        if self._leaves is not None:  # some may have had no gradients when the block began
            known = {id(param) for each in self._untrained for param in each.params}
            self._untrained[-1].params = [*self._untrained[-1].params, *self._others_reached(known)]
        with self._process_casts.paused():
            for each in self._untrained:
                each.end()

    def __exit__(self, kind, error, trace):
        if self._left is not None:
            self._check_unchanged(kind)
            return
        for record in self.records:
            record.open_blocks.discard(self)
        # Their gradients stay scaled: other blocks with this scaler are still open.
        nested, records = [], []
        for each in self.records:
            is_nested = any([block.scaler is self.scaler for block in each.open_blocks])
            (nested if is_nested else records).append(each)
        if self._adopted and kind is None:
            _warn_if_unrelated(self._adopted[0].optimizer, self.records)
        if self._untrained:
            self._end_untrained()
        sharded = self._session.sharded_models
        is_unreduced = sharded.exist and sharded.keep_gradients(records)
        for record, before in self._others:
            stays = self.delay_unscale or is_unreduced
            record.gradients.end_pass_of_others(before, self.scale, () if stays else records + nested)
        self._others = ()
        if kind is not None:
            self._unscale_unchecked(records)
            return
        if self.delay_unscale or is_unreduced:
            self._leave_scaled(records, is_unreduced)
        else:
            self._unscale(records)
            self._check_overflow(records, nested)
        for observer in self._session.observers:
            observer.after_backward(self)

    def end_with_session(self):
        """End the block before its session is closed within it: what the block has so far becomes true gradients."""
        params = [param for record in self.records for param in record.leaf_params()]
        self.__exit__(AmpError, None, None)
        self._left = [(param, None) for param in params]

    def session_closed(self):
        """Note the gradients that are left, after ``end_with_session``: a later pass would add scaled ones."""
        self._left = [(param, mark_of(param.grad)) for param, _ in self._left]

    def _check_unchanged(self, kind):
        """Raise if a pass of this block came after the end of its session, and the body did not raise (``kind``)."""
        is_changed = not all([is_unchanged(mark, mark_of(param.grad)) for param, mark in self._left])
        if kind is None and is_changed and not is_one(self.scale):
            raise AmpError(
                "ampcompat.reset(), or the end of the session, came within a with amp.scale_loss(...) block, and a "
                f"backward pass of the block after it: its gradients are multiplied by {float(self.scale):g}. End the "
                "block before the session."
            )

    def _unscale_unchecked(self, records):
        """Unscale after an error, without a check of what the pass has left."""
        earlier = self.scaler.overflow_state()
        has_delayed = any([record.gradients.are_delayed() for record in records])
        self._unscale(records)
        if has_delayed:  # gradients of passes that did end are among them
            defer_check(self.scaler, self.loss_id, self.records)
        else:
            self.scaler.clear_overflow_state(earlier)

    def _leave_scaled(self, records, is_unreduced):
        loss = None if is_unreduced else NumberedLoss(self.scaler, self.loss_id)
        for record in records:
            record.gradients.leave_scaled(self.scale, loss)
        self._ddp_wrappers.record_unreduced(self.records, stay=True)

    def _unscale(self, records):
        with self._process_casts.backend.paused(), grad_enabled(False):
            seen = set()
            for record in records:
                post_backward = client_method(record, "_post_amp_backward")
                if post_backward is None:
                    record.gradients.leave(self.scaler, self.scale, seen)
                else:
                    record.gradients.leave_by_client(self.scaler, post_backward)

    def _check_overflow(self, records, nested):
        """Make the overflow check, or defer it.

        Args:
            records: of the optimizers whose gradients are unscaled.
            nested: records whose gradients are still scaled: an outer block will unscale them.
        """
        is_local, groups = False, ()
        if self._ddp_wrappers.exist():
            self._ddp_wrappers.record_unreduced(nested, stay=True)
            is_local = self._ddp_wrappers.record_unreduced(records, stay=False)
            with self._process_casts.paused(), grad_enabled(False):
                groups = self._ddp_wrappers.average(records)
                for record in records if groups else ():
                    record.gradients.follow()
        if self.delay_overflow_check:
            return
        if is_local or nested:
            defer_check(self.scaler, self.loss_id, self.records)
        else:
            self.overflow_check = check_overflow(self.scaler, self.loss_id, self.records, groups)


class UnscaledPass:
    """The context manager of a ``scale_loss`` block with a static scale of 1 and without masters or observers.

    The gradients are right as they are. This is the default of O0 and O4.
    """

    __slots__ = ("_loss", "_high")

    def __init__(self, configuration, loss):
        self._loss = loss
        self._high = configuration.policy.dtypes.high

    def __enter__(self):
        return self._loss if self._loss.dtype is self._high else self._loss.to(self._high)

    def __exit__(self, kind, error, trace):
        """Nothing is left to do."""


def _warn_if_unrelated(optimizer, records):
    """Warn of an optimizer that ``initialize`` did not get if no record has gradients: Apex refuses it."""
    if any([tensor_lists.have_stored_gradients(record.leaf_params()) for record in records]):
        return
    warnings.warn(
        f"{type(optimizer).__name__} was passed to amp.scale_loss and not to amp.initialize, and the backward pass "
        "gave none of its params a gradient: it trains nothing. Make the optimizer of the params that the model has "
        "now, and pass it to amp.initialize with the model.",
        stacklevel=3,
    )
