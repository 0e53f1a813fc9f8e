"""Random sequences of what scripts do to weights, masters and gradients, beside the same script in float64 without amp.

All numbers are multiples of ``UNIT`` that bfloat16 can hold, so that both scripts agree to the last bit.
See ``helpers.sequences`` for how many.
"""

import concurrent.futures
import copy
import inspect

import torch
from helpers.networks import holds_nonzero, settings_at
from helpers.networks import initialize as initialize_amp
from helpers.sequences import FACTOR, NAMES, Linears, SessionMachine, rare, run_sequences, subsets
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from ampcompat import amp

UNIT = 2.0**-2
LARGEST = 32.0  # of a weight, 2**7 units
numbers = st.lists(st.integers(-3, 3), min_size=2, max_size=2)
names = st.sampled_from(NAMES)
#: What ``zero_grad`` is called with; torch before 1.7 takes nothing.
TAKES_SET_TO_NONE = "set_to_none" in inspect.signature(torch.optim.Optimizer.zero_grad).parameters
cleared = st.sampled_from([{}] + [{"set_to_none": value} for value in (True, False) if TAKES_SET_TO_NONE])


class PlainScript:
    """A training script in float64, without amp."""

    dtype = torch.float64

    def __init__(self):
        self.model = Linears([1.0 - index, 0.25 + index] for index in range(3)).to(self.dtype)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1.0)
        self.kept = {}  # name -> what the script got from ``.data`` of a param, and keeps
        self.slow = None  # the weights of a Lookahead

    # -- what scripts do -----------------------------------------------------------------------------------------------

    def loss(self, gradients):
        inputs = {name: (values / FACTOR).to(self.dtype).view(1, 2) for name, values in gradients.items()}
        return FACTOR * self.model(inputs).sum()

    def scaled_backward(self, gradients, overflows):
        if not overflows:
            self.loss(gradients).backward()

    def plain_backward(self, gradients):
        self.loss(gradients).backward()

    def trained(self):
        """Return the params that the optimizer steps on."""
        return [param for group in self.optimizer.param_groups for param in group["params"]]

    def step(self):
        self.optimizer.step()

    def param(self, name):
        return getattr(self.model, name)

    def write(self, name, how, values):
        write(self.model, name, how, values.to(self.param(name).dtype).view(1, 2))

    def keep(self, name):
        self.kept[name] = self.param(name).data

    def write_to_kept(self, name, values):
        self.kept[name].add_(values.to(self.kept[name].dtype).view(1, 2))

    def write_trained(self, index, through_data, values):
        param = self.trained()[index]
        with torch.no_grad():
            (param.data if through_data else param).add_(values.to(param.dtype).view(1, 2))

    def look_ahead(self):
        """Move to the slow weights and these to the weights, as a wrapper around an optimizer does after a step."""
        params = self.trained()
        if self.slow is None or len(self.slow) != len(params):
            self.slow = [param.detach().clone() for param in params]
        for slow, param in zip(self.slow, params):
            slow.add_(((param.detach() - slow) / UNIT / 2).round() * UNIT)
            param.data.copy_(slow)

    def clip(self, limit):
        params = [param for param in self.model.parameters() if param.grad is not None]
        if params:  # torch's own function cannot clip nothing
            torch.nn.utils.clip_grad_value_(params, limit)

    def freeze(self, name, is_frozen):
        self.param(name).requires_grad_(not is_frozen)
        self.param(name).grad = None
        self.optimizer.param_groups[0]["params"] = [each for each in self.model.parameters() if each.requires_grad]
        self.slow = None

    def limit(self):
        """Keep the weights within numbers that bfloat16 can hold."""
        for param in self.model.parameters():
            param.data.clamp_(-LARGEST, LARGEST)


class Script(PlainScript):
    """The same script with amp."""

    def __init__(self, setting, options):
        self.dtype = setting.high
        super().__init__()
        initialize_amp(setting, self.model, self.optimizer, **options)

    def scaled_backward(self, gradients, overflows):
        with amp.scale_loss(self.loss(gradients), self.optimizer) as scaled_loss:
            (scaled_loss * (float("inf") if overflows else 1.0)).backward()


def write(model, name, how, values):
    """Write to a param in one way."""
    param = getattr(model, name)
    if how == "data":
        param.data.add_(values)
    elif how == "in place":
        with torch.no_grad():
            param.add_(values)
    elif how == "element":
        with torch.no_grad():
            param[0, 1] = values[0, 1]
    elif how == "detached":
        param.detach().sub_(values)
    elif how == "new data":
        param.data = values.clone()
    elif how == "copy":
        with torch.no_grad():
            param.copy_(values)
    elif how == "clamp":
        param.data.clamp_(-1.0, 1.0)
    elif how == "swap and restore":
        before = param.data.clone()
        param.data.copy_(values)
        model({name: torch.ones(1, 2, dtype=param.dtype)})
        param.data.copy_(before)
    elif how == "load":
        state = model.state_dict()
        model.load_state_dict(dict(state, **{name: values.to(state[name].dtype)}))
    elif param.dtype is not torch.bfloat16:  # NumPy has none
        array = param.detach().numpy()
        array += values.numpy()
    else:
        param.data.add_(values)


WAYS = ["data", "in place", "element", "detached", "new data", "copy", "clamp", "swap and restore", "load", "numpy"]


class Machine(SessionMachine):
    """Does the same with both scripts, and compares them.

    ``written`` says what was written to since half params and masters agreed: nothing, "half", "master", or "both".
    """

    @initialize(is_dynamic=st.booleans())
    def begin(self, is_dynamic):
        self.is_dynamic = is_dynamic and self.setting.level not in ("O0", "O5")
        self.plain = PlainScript()
        options = {"loss_scale": "dynamic" if self.is_dynamic else 128.0}
        self.own = Script(self.setting, options)
        self.scripts = (self.plain, self.own)
        self.written = self.overflowed = None
        self.frozen = set()

    def both(self, action):
        for script in self.scripts:
            action(script)

    def values(self, pair):
        return torch.tensor(pair, dtype=torch.float64) * UNIT

    def gradients(self, wanted, pair):
        chosen = sorted(set(wanted) - self.frozen) or sorted(set(NAMES) - self.frozen)[:1]
        return {name: self.values(pair if index % 2 else pair[::-1]) for index, name in enumerate(chosen)}

    # -- passes and steps ----------------------------------------------------------------------------------------------

    @precondition(lambda self: self.overflowed is None)
    @rule(wanted=subsets, pair=numbers, overflows=rare, in_thread=rare)
    def scaled_pass(self, wanted, pair, overflows, in_thread):
        gradients, overflows = self.gradients(wanted, pair), overflows and self.is_dynamic
        if in_thread:
            with concurrent.futures.ThreadPoolExecutor(1) as pool:
                self.both(lambda script: pool.submit(script.scaled_backward, gradients, overflows).result())
        else:
            self.both(lambda script: script.scaled_backward(gradients, overflows))
        self.overflowed = True if overflows else None
        self.written = None if self.written == "master" else self.written

    @precondition(lambda self: self.overflowed is None)
    @rule(wanted=subsets, pair=numbers)
    def plain_pass(self, wanted, pair):
        gradients = self.gradients(wanted, pair)
        self.both(lambda script: script.plain_backward(gradients))
        self.written = None if self.written == "master" else self.written

    @rule(options=cleared)
    def step(self, options):
        if self.overflowed:
            self.own.step()
            self.overflowed = None
        else:
            self.both(PlainScript.step)
        self.written = None
        self.compare_weights()
        self.both(lambda script: script.optimizer.zero_grad(**options))
        self.compare_gradients()
        self.both(PlainScript.limit)
        self.written = "half"

    @precondition(lambda self: self.overflowed is None)
    @rule()
    def step_again(self):
        """Step without clearing gradients."""
        self.both(PlainScript.step)
        self.written = None
        self.compare_weights()
        self.compare_gradients()
        self.both(PlainScript.limit)
        self.written = "half"

    @precondition(lambda self: self.overflowed is None)
    @rule()
    def step_and_look_ahead(self):
        self.both(PlainScript.step)
        self.both(PlainScript.look_ahead)
        self.compare_state()
        self.both(PlainScript.limit)
        self.written = "half"

    # -- writes --------------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.written not in ("master", "both"))
    @rule(name=names, how=st.sampled_from(WAYS), pair=numbers)
    def write(self, name, how, pair):
        self.both(lambda script: script.write(name, how, self.values(pair)))
        self.written = "half"
        self.compare_weights()

    @rule(name=names)
    def keep_alias(self, name):
        self.both(lambda script: script.keep(name))

    @precondition(lambda self: self.written not in ("master", "both") and self.plain.kept)
    @rule(pair=numbers)
    def write_to_alias(self, pair):
        name = sorted(self.plain.kept)[0]
        if all(script.kept[name].data_ptr() == script.param(name).data_ptr() for script in self.scripts):
            self.both(lambda script: script.write_to_kept(name, self.values(pair)))
            self.written = "half"
            self.compare_weights()

    @precondition(lambda self: self.written not in ("half", "both"))
    @rule(index=st.integers(0, 2), through_data=st.booleans(), pair=numbers)
    def write_to_what_is_trained(self, index, through_data, pair):
        index %= len(self.plain.trained())
        self.both(lambda script: script.write_trained(index, through_data, self.values(pair)))
        self.written = "master"
        self.compare_state()

    @precondition(lambda self: self.written is not None and not self.plain.kept)
    @rule(name=names, index=st.integers(0, 2), how=st.sampled_from([None, "data", "new data"]), pair=numbers)
    def write_to_both_through_data(self, name, index, how, pair):
        index %= len(self.plain.trained())
        if how is not None:
            self.both(lambda script: script.write(name, how, self.values(pair)))
        else:
            self.both(lambda script: script.write_trained(index, True, self.values(pair)))
        self.written = "both"
        self.compare_state()

    @precondition(lambda self: self.overflowed is None)
    @rule(name=names, is_frozen=st.booleans())
    def rebuild_groups(self, name, is_frozen):
        if is_frozen and len(self.frozen | {name}) == len(NAMES):
            return
        (self.frozen.add if is_frozen else self.frozen.discard)(name)
        self.both(lambda script: script.freeze(name, is_frozen))

    # -- gradients -----------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.overflowed is None)
    @rule(limit=st.sampled_from([UNIT, 2 * UNIT]))
    def clip(self, limit):
        self.both(lambda script: script.clip(limit))

    @precondition(lambda self: self.overflowed is None)
    @rule(name=names, how=st.sampled_from(["add", "zero", "replace", "remove"]))
    def change_gradient(self, name, how):
        params = [script.param(name) for script in self.scripts]
        if any(param.grad is None for param in params):
            how = "remove"  # one alone has zeros after a skipped step, where ``zero_grad`` keeps tensors
        for param in params:
            if how == "remove":
                param.grad = None
            elif how == "replace":
                param.grad = torch.full_like(param.grad, UNIT)
            else:
                param.grad.zero_() if how == "zero" else param.grad.add_(UNIT)

    @precondition(lambda self: self.overflowed is None)
    @rule()
    def read_gradients(self):
        self.compare_gradients()

    # -- copies and checkpoints ----------------------------------------------------------------------------------------

    @precondition(lambda self: self.overflowed is None and self.written not in ("half", "both") and not self.frozen)
    @rule()
    def save_and_resume(self):
        for script in self.scripts:
            state = copy.deepcopy((script.model.state_dict(), script.optimizer.state_dict()))
            script.step()
            script.model.load_state_dict(state[0])
            script.optimizer.load_state_dict(state[1])
        self.written = "half"
        self.compare_weights()

    # -- comparisons ---------------------------------------------------------------------------------------------------

    def compare_weights(self):
        for name in NAMES:
            own, plain = self.own.param(name).detach(), self.plain.param(name).detach()
            assert torch.equal(own.double(), plain), (name, own, plain)
        self.compare_state()

    def compare_state(self):
        own, plain = self.own.model.state_dict(), self.plain.model.state_dict()
        for name in NAMES:
            assert torch.equal(own[name].double(), plain[name]), (name, own[name], plain[name])

    def compare_gradients(self):
        for name in NAMES:
            own, plain = self.own.param(name).grad, self.plain.param(name).grad
            if plain is None or not holds_nonzero(plain):
                assert own is None or not holds_nonzero(own), (name, own, plain)
            else:
                assert own is not None and torch.equal(own.double(), plain), (name, own, plain)

    @rule()
    def forward(self):
        inputs = {name: torch.full((2,), UNIT, dtype=torch.float64) for name in NAMES}
        with torch.no_grad():
            found, expected = (float(script.loss(inputs)) for script in (self.own, self.plain))
        assert found == expected
        self.written = None if self.written == "master" else self.written


@settings_at("O0", "O1", "O2", "O3", "O4", "O5", stored=True)
def test_random_sequences_agree_with_the_script_in_float64(setting):
    run_sequences(Machine, setting, settings_of_test=8)
