"""ampcompat's replacement for NVIDIA Apex: the same names, re-exported from the package ``ampcompat``.

``import apex`` makes ``apex.amp`` and the other submodules available; each is loaded on first use. The import prints
nothing and does not load torch.
"""

import importlib
import importlib.util
import sys

from . import _absent


def _find_ampcompat():
    """Make sure that ``import ampcompat`` works: it may be a checkout that is not on ``sys.path``."""
    if importlib.util.find_spec("ampcompat") is None:
        import os

        sys.path.append(os.path.abspath(os.path.join(os.path.dirname(__file__), *[os.pardir] * 4)))


def _advise_where_cuda_is_missing():
    """Under ``run``: print below the traceback of a CUDA error how to run without CUDA."""
    import os

    if "AMPCOMPAT_COMMAND_FOR_CPU" in os.environ:
        from ampcompat.support import missing_cuda

        missing_cuda.advise_at_exit()


_find_ampcompat()
_absent.install_finders()
_advise_where_cuda_is_missing()

#: What scripts use of the names that Apex's ``__init__.py`` defines: see ``ampcompat.apex.package_names``.
_PACKAGE_NAMES = ("DeprecatedFeatureWarning",)


def __getattr__(name):
    if name in _PACKAGE_NAMES:
        from ampcompat.apex import package_names

        return getattr(package_names, name)
    full_name = __name__ + "." + name
    if not name.startswith("_") and importlib.util.find_spec(full_name) is not None:
        return importlib.import_module(full_name)
    try:
        return _absent.nvidia_attribute(name)
    except AttributeError:
        raise AttributeError(_absent.explain(full_name)) from None


def __dir__():
    import pkgutil

    provided = {module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_")}
    return sorted(provided.union(globals(), _PACKAGE_NAMES))
