"""Proxies of torch classes whose constructors must return something else: ``torch.device``, ``torch.Generator``.

A proxy is a class only for ``isinstance`` and ``issubclass``. Calling it returns an instance of the real class.
"""

import functools

from . import device_arguments


class _ProxyMeta(type):
    """The metaclass of proxies."""

    def __call__(cls, *args, **kwargs):
        return cls._make(*args, **kwargs)

    def __instancecheck__(cls, instance):
        return cls._accepts(instance)

    def __subclasscheck__(cls, other):
        return other is cls or (cls._real is not None and issubclass(other, cls._real))

    # Equal to the real class, so that look-ups in dicts with classes as keys (torch.fx, torch.compile) find either.

    def __eq__(cls, other):
        return other is cls or (cls._real is not None and other is cls._real)

    def __hash__(cls):
        return type.__hash__(cls) if cls._real is None else hash(cls._real)

    def __getattr__(cls, name):
        if cls._real is None or name.startswith("__"):
            raise AttributeError(name)
        return getattr(cls._real, name)


def proxy(name, module, make, accepts, real=None, **attributes):
    """Return a class with this name; calling it calls ``make``, and ``isinstance`` checks call ``accepts``."""
    body = dict(attributes, __module__=module, _make=staticmethod(make), _accepts=staticmethod(accepts), _real=real)
    return _ProxyMeta(name, (), body)


def device(target, original):
    """Replace ``torch.device`` if an index alone does not mean a CUDA device."""
    try:
        if original(0).type == "cuda":
            return original
    except RuntimeError:  # torch 2.13 without any accelerator
        pass

    def make(*args, **kwargs):
        if args and isinstance(args[0], int) and not isinstance(args[0], bool):
            args = ("cuda",) + args
        return original(*args, **kwargs)

    return proxy("device", "torch", make, original.__instancecheck__, original, __doc__=original.__doc__)


def current_accelerator(target, original):
    """Return ``torch.accelerator.current_accelerator`` without CUDA, for a torch built for CUDA without a GPU."""

    @functools.wraps(original)
    def accelerator(*args, **kwargs):
        found = original(*args, **kwargs)
        return None if found is None or found.type == "cuda" else found

    return accelerator


def generator(target, original):
    """Replace ``torch.Generator``: a generator for CUDA becomes one for the target."""

    def make(*args, **kwargs):
        args, kwargs = device_arguments.with_translated_device(target, args, kwargs)
        return original(*args, **kwargs)

    return proxy("Generator", original.__module__, make, original.__instancecheck__, original, __doc__=original.__doc__)
