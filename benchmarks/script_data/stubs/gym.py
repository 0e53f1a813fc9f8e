"""Stand-in for ``gym`` before 0.26: environments with linear dynamics, for scripts of reinforcement learning."""

import sys
import types

import numpy


class Space:
    """What ``Box`` and ``Discrete`` share."""

    dtype = numpy.dtype("float32")

    def __init__(self):
        self._rng = numpy.random.RandomState(0)

    def seed(self, seed=None):
        self._rng = numpy.random.RandomState(seed)


class Box(Space):
    def __init__(self, low, high, shape):
        super().__init__()
        self.low, self.high = numpy.full(shape, low, "float32"), numpy.full(shape, high, "float32")
        self.shape = shape

    def sample(self):
        return self._rng.uniform(self.low, self.high).astype("float32")


class Discrete(Space):
    def __init__(self, n):
        super().__init__()
        self.n, self.shape, self.dtype = n, (), numpy.dtype("int64")

    def sample(self):
        return int(self._rng.randint(self.n))


class MultiBinary(Space):
    pass


class MultiDiscrete(Space):
    pass


class Spec:
    max_episode_steps, reward_threshold, id = 60, 1e9, "stand-in"


class Wrapper:
    """An environment around another one."""

    def __init__(self, env, *args, **kwargs):
        self.env = env

    def __getattr__(self, name):
        if name.startswith("__") or name == "env":
            raise AttributeError(name)
        return getattr(self.env, name)

    def reset(self, **kwargs):
        return self.env.reset(**kwargs)

    def step(self, action):
        return self.env.step(action)


class Linear:
    """The state rotates and is pushed by the action; the reward is the nearness to zero."""

    def __init__(self, width, actions):
        self.observation_space = Box(-5.0, 5.0, (width,))
        self.action_space = actions
        self.spec, self.metadata, self.reward_range = Spec(), {}, (-1.0, 1.0)
        self._max_episode_steps = Spec.max_episode_steps
        self.seed(0)

    @property
    def unwrapped(self):
        return self

    def seed(self, seed=None):
        self._rng = numpy.random.RandomState(seed)
        return [seed]

    def reset(self, **kwargs):
        self._state, self._time = self._rng.uniform(-1, 1, self.observation_space.shape), 0
        return self._state.astype("float32")

    def step(self, action):
        if isinstance(self.action_space, Discrete):
            push = (float(action) - (self.action_space.n - 1) / 2) * numpy.ones(1)
        else:
            push = numpy.asarray(action, "float64").reshape(-1)
        self._state = 0.95 * numpy.roll(self._state, 1) + 0.1 * numpy.resize(push, self._state.shape)
        self._time += 1
        done = self._time >= Spec.max_episode_steps or bool(abs(self._state).max() > 4)
        reward = float(1.0 - abs(self._state).mean())
        info = {"episode": {"r": reward, "l": self._time}} if done else {}
        return self._state.astype("float32"), reward, done, info

    def render(self, *args, **kwargs):
        return None

    def close(self):
        pass


def make(name, **kwargs):
    """Return an environment with the spaces of a known one."""
    if "CartPole" in name:
        return Linear(4, Discrete(2))
    if "LunarLander" in name:
        return Linear(8, Discrete(4))
    if "Pendulum" in name:
        return Linear(3, Box(-2.0, 2.0, (1,)))
    return Linear(15, Box(-1.0, 1.0, (3,)))


def _module(name, **names):
    module = types.ModuleType(name)
    vars(module).update(names)
    sys.modules[name] = module
    return module


class DummyVecEnv:
    """Several environments that are stepped in turn."""

    def __init__(self, makers):
        self.envs = [make() for make in makers]
        self.num_envs = len(self.envs)
        self.observation_space, self.action_space = self.envs[0].observation_space, self.envs[0].action_space

    def reset(self):
        return numpy.stack([env.reset() for env in self.envs])

    def step(self, actions):
        self.step_async(actions)
        return self.step_wait()

    def step_async(self, actions):
        self._actions = actions

    def step_wait(self):
        results = [list(env.step(action)) for env, action in zip(self.envs, self._actions)]
        for env, result in zip(self.envs, results):
            if result[2]:
                result[0] = env.reset()
        states, rewards, dones, infos = zip(*results)
        return numpy.stack(states), numpy.array(rewards, "float32"), numpy.array(dones), list(infos)

    def close(self):
        pass


class VecEnvWrapper(DummyVecEnv):
    def __init__(self, venv):
        self.venv, self.num_envs = venv, venv.num_envs
        self.observation_space, self.action_space = venv.observation_space, venv.action_space

    def step_async(self, actions):
        self.venv.step_async(actions)


_spaces = dict(Space=Space, Box=Box, Discrete=Discrete, MultiBinary=MultiBinary, MultiDiscrete=MultiDiscrete)
spaces = _module("gym.spaces", **_spaces)
spaces.box = spaces.discrete = spaces
wrappers = _module("gym.wrappers", TimeLimit=Wrapper, Monitor=Wrapper, RecordEpisodeStatistics=Wrapper)
core = _module("gym.core", Wrapper=Wrapper)
ObservationWrapper = ActionWrapper = RewardWrapper = Wrapper
Env = Linear
__path__ = []
_module("stable_baselines3")
_module("stable_baselines3.common")
_module(
    "stable_baselines3.common.vec_env", DummyVecEnv=DummyVecEnv, SubprocVecEnv=DummyVecEnv, VecEnvWrapper=VecEnvWrapper
)
_module("pybullet_envs")
