"""Classes that stand before one of torch's, because torch's own cannot be told what to make.

Owns: ``facade``, and those of ``torch.device`` and ``torch.Generator``.
Must not touch: the instances, which are torch's own.
The surprise: a facade is a class only for those who ask ``isinstance``. Calling it returns an object of the real
class, so nothing made under the redirection is different from what torch makes.
"""


class _Facade(type):
    """The class of facades."""

    def __call__(cls, *args, **kwargs):
        return cls._make(*args, **kwargs)

    def __instancecheck__(cls, instance):
        return cls._accepts(instance)

    def __subclasscheck__(cls, other):
        return other is cls or (cls._real is not None and issubclass(other, cls._real))

    # Equal to the real class, so that tables of classes (torch.fx and torch.compile have some) find either.

    def __eq__(cls, other):
        return other is cls or (cls._real is not None and other is cls._real)

    def __hash__(cls):
        return type.__hash__(cls) if cls._real is None else hash(cls._real)

    def __getattr__(cls, name):
        if cls._real is None or name.startswith("__"):
            raise AttributeError(name)
        return getattr(cls._real, name)


def facade(name, module, make, accepts, real=None, **attributes):
    """Return a class with this name whose calls go to ``make`` and whose ``isinstance`` goes to ``accepts``."""
    body = dict(attributes, __module__=module, _make=staticmethod(make), _accepts=staticmethod(accepts), _real=real)
    return _Facade(name, (), body)


def device(target, original):
    """Return ``torch.device`` for a torch where an index alone does not make a CUDA device."""
    try:
        if original(0).type == "cuda":
            return original
    except RuntimeError:  # torch 2.13 without any accelerator
        pass

    def make(*args, **kwargs):
        if args and isinstance(args[0], int) and not isinstance(args[0], bool):
            args = ("cuda",) + args
        return original(*args, **kwargs)

    def accepts(value):
        return isinstance(value, original)

    return facade("device", "torch", make, accepts, original, __doc__=original.__doc__)


def generator(target, original):
    """Return ``torch.Generator``: one for CUDA is one for the target."""

    def make(*args, **kwargs):
        args = tuple(target.of(argument) for argument in args)
        if "device" in kwargs:
            kwargs["device"] = target.of(kwargs["device"])
        return original(*args, **kwargs)

    def accepts(value):
        return isinstance(value, original)

    return facade("Generator", original.__module__, make, accepts, original, __doc__=original.__doc__)


def is_facade(value, attribute):
    """Return whether a value is a facade with this attribute."""
    return isinstance(value, _Facade) and hasattr(value, attribute)
