"""Errors for names that cannot be redirected."""

import functools
import inspect
import sys

from ....errors import AmpNotImplementedError

_CUDA_SOURCES = (".cu", ".cuh")


def unsupported_error(name, target, why):
    """Return the error for something that needs a GPU."""
    return AmpNotImplementedError(
        f"{name} cannot be redirected to {target.type}: {why}. `--device {target.type}` redirects only what has "
        "a counterpart there; remove this part of the script, or run it on a machine with CUDA."
    )


def raising_replacement(name, target, original, why):
    """Replace a function or class by one that raises an error when it is called."""

    def fail(*args, **kwargs):
        raise unsupported_error(name, target, why)

    if isinstance(original, type):  # still a class, for isinstance and subclasses
        body = {"__new__": fail, "__module__": original.__module__, "__doc__": original.__doc__}
        return type(original.__name__, (), body)
    return functools.wraps(original)(fail)


def lazy_init(target, original):
    """Raise an error that contains the name of the function that initializes CUDA.

    torch calls ``torch.cuda._lazy_init`` before every use of CUDA, also from C++, so this covers names without a row.
    """
    caller = sys._getframe(2)
    in_torch = caller.f_globals.get("__name__", "").startswith("torch.cuda")
    name = "torch.cuda." + caller.f_code.co_name if in_torch else "This use of CUDA"
    raise unsupported_error(name, target, "it uses CUDA, and ampcompat has no replacement for it")


def without_cuda_sources(target, original, *args, **kwargs):
    """Call ``load`` or ``load_inline`` of torch.utils.cpp_extension, or raise an error for CUDA sources."""
    given = inspect.signature(original).bind(*args, **kwargs).arguments
    sources = given.get("sources") or ()
    files = [sources] if isinstance(sources, str) else [str(source) for source in sources]
    if given.get("cuda_sources") or given.get("with_cuda") or any(file.endswith(_CUDA_SOURCES) for file in files):
        name = "torch.utils.cpp_extension." + original.__name__
        raise unsupported_error(name, target, "it compiles CUDA code, which needs a GPU to run")
    return original(*args, **kwargs)
