"""What cannot be redirected says so.

Owns: the sentence, and the stand-ins that raise it.
Must not touch: what can be redirected.
The surprise: there is a net under the table: torch goes through ``torch.cuda._lazy_init`` whenever it is about to use
CUDA, from C++ too, and that raises here. So a way that no row covers ends in a sentence as well.
"""

import functools
import inspect
import sys

from ..errors import AmpNotImplementedError

_CUDA_SOURCES = (".cu", ".cuh")


def refusal(name, target, why):
    """Return the error for something that needs a GPU."""
    return AmpNotImplementedError(
        "{} cannot be redirected to {}: {}. `--device {}` redirects what has a counterpart there; leave this part of "
        "the script out, or run it on a machine with CUDA.".format(name, target.type, why, target.type)
    )


def refused(name, target, original, why):
    """Return what takes the place of a function or class that is refused when it is called."""

    def refuse(*args, **kwargs):
        raise refusal(name, target, why)

    if isinstance(original, type):  # a class still, for isinstance and for subclasses
        body = {"__new__": refuse, "__module__": original.__module__, "__doc__": original.__doc__}
        return type(original.__name__, (), body)
    return functools.wraps(original)(refuse)


def lazy_init(target, original):
    """Return what raises in place of CUDA's initialisation, naming who asked."""

    @functools.wraps(original)
    def refuse():
        caller = sys._getframe(1)
        in_torch = caller.f_globals.get("__name__", "").startswith("torch.cuda")
        name = "torch.cuda." + caller.f_code.co_name if in_torch else "This use of CUDA"
        raise refusal(name, target, "it reached CUDA itself, and ampcompat knows no other way for it")

    return refuse


def without_cuda_sources(target, original):
    """Return torch.utils.cpp_extension's ``load`` or ``load_inline`` for sources that are C++ only."""
    signature = inspect.signature(original)

    @functools.wraps(original)
    def load(*args, **kwargs):
        given = signature.bind(*args, **kwargs).arguments
        sources = given.get("sources") or ()
        files = [sources] if isinstance(sources, str) else [str(source) for source in sources]
        if given.get("cuda_sources") or given.get("with_cuda") or any(file.endswith(_CUDA_SOURCES) for file in files):
            name = "torch.utils.cpp_extension." + original.__name__
            raise refusal(name, target, "it compiles CUDA code, which needs a GPU to run")
        return original(*args, **kwargs)

    return load
