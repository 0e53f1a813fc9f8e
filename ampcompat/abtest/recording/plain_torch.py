"""Records training that does not call ``amp.initialize``: backward passes, optimizer steps and ``GradScaler``.

A plain loop does not number its losses. So in a series with such a script, the losses of every run are numbered by
their line, in the order in which these lines first run.
"""

import weakref
from types import SimpleNamespace

import torch

from ...launch.forced_levels.trained_modules import outermost, params_in, trained_params
from ...observers.steps import Pass, PlainSteps, is_amp_in_use, watch_scripting
from ...support.script_frames import script_line
from ...support.torch_compat import step_hooks
from .recorder import StepLimitReached


class PlainTraining:
    """Reports plain training to a ``Recorder``: a listener of ``PlainSteps``.

    A step of the run ends when all optimizers have stepped, or when a line with a backward pass runs again after a
    step.

    Args:
        recorder: the ``Recorder``.
        observers: sources of events of the recorder that also observe the backward passes of plain training.
    """

    def __init__(self, recorder, observers=()):
        self._recorder, self._observers = recorder, list(observers)
        self._steps = PlainSteps(self)
        self._loss_ids = {}  # (file, line) -> loss_id
        self._params = set()  # ids of params in watched models
        self._casts_itself = False
        self._step, self._passes, self._stepped = 0, {}, []  # in this step: loss_id -> optimizer steps before it
        recorder.number = self.number

    def number(self):
        """Return the number of the loss of the running line of the script."""
        return self._loss_ids.setdefault(script_line(), len(self._loss_ids))

    def watch(self, patches):
        """Watch training until ``patches`` is undone, from torch 2.0 on."""
        self._steps.watch(patches)
        if step_hooks.exist():
            self._recorder.has_plain_steps = True
            watch_scripting(patches, self._forget_models)

    def _forget_models(self):
        self._params.clear()
        self._recorder.forget_models()  # the compiler would trace the hooks

    # -- what ``PlainSteps`` calls -------------------------------------------------------------------------------------

    def optimizer_made(self, optimizer):
        """Watch the models that an optimizer trains, unless all of its params are in watched models."""
        params = trained_params([optimizer])
        if not self._params.issuperset(params):
            models = outermost(params)
            self._params.update(*map(params_in, models))
            self._recorder.watch_models(models)

    def region_entered(self, region):
        """Record that the script casts by itself."""
        if not self._casts_itself and region._enabled:
            self._casts_itself = True
            told = "torch.autocast in {}:{}".format(*script_line())
            self._recorder.record({"environment": {"casts_itself": told}})

    def backward_begins(self, loss, scale):
        """Report a backward pass; end the step before it."""
        if not self._recorder.is_initialized:
            self._recorder.initialized(SimpleNamespace(choice=None), [], [])
            self._recorder.sources[:] = self._observers  # the others measure models known to amp
            self._record_half_weights()
        loss_id = self.number()
        self._begin_step_if_ended()
        records = [each for each in self._steps.optimizers.values() if each not in self._stepped]
        if len(self._stepped) > self._passes.get(loss_id, len(self._stepped)):
            records = self._stepped[-1:]  # the recorder ends its step
        for observer in [self._recorder] + self._observers:
            observer.before_backward(Pass(loss, loss_id, scale, records))
        self._begin_step_if_ended()
        self._passes[loss_id] = len(self._stepped)

    def step_begins(self, plain):
        """Report it."""
        self._recorder.before_step(plain)

    def step_ended(self, plain):
        """Report it."""
        self._begin_step_if_ended()
        self._stepped.append(plain)
        self._recorder.after_step(plain)

    def _record_half_weights(self):
        """Record the dtype that most trained params have, if it is half: their optimizers update half weights."""
        sizes = {}
        for optimizer in self._steps.optimizers:
            for param in [param for group in optimizer.param_groups for param in group["params"]]:
                sizes[param.dtype] = sizes.get(param.dtype, 0) + param.numel()
        dtype = max(sizes, key=sizes.get, default=None)
        if dtype in (torch.float16, torch.bfloat16):
            self._recorder.record({"environment": {"half_weights": str(dtype).partition(".")[2]}})

    def _begin_step_if_ended(self):
        step = len(self._recorder.run.step_seconds)
        if step != self._step:
            self._step, self._passes, self._stepped = step, {}, []


def limit_steps(recorder, patches):
    """End training without amp after the recorder's limit of steps; from torch 2.0 on.

    Such a run has nothing to record, so it need not continue to its end.
    """
    counts = weakref.WeakKeyDictionary()  # optimizer -> its steps without amp

    def after_step(optimizer, args, kwargs):
        if not recorder.is_initialized and not is_amp_in_use():
            counts[optimizer] = counts.get(optimizer, 0) + 1
            if counts[optimizer] == recorder.limit:
                raise StepLimitReached(f"{recorder.limit} steps were made without amp")

    if step_hooks.exist():
        step_hooks.register(patches, after=after_step)
