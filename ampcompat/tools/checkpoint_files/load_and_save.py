"""Read and write checkpoint files. They are read with ``weights_only=True``, so that they cannot run code."""

import contextlib
import functools
import inspect
import os
import pickle
import re
import zipfile

import torch

from ...errors import AmpError
from ...support import files

#: Classes of Apex, as (module, name), whose instances FP16_Optimizer saved. They are read as ``SavedObject``.
_SCALERS = [
    ("apex.fp16_utils.loss_scaler", "LossScaler"),
    ("apex.fp16_utils.loss_scaler", "DynamicLossScaler"),
    ("apex.amp.scaler", "LossScaler"),
]


class SavedObject:
    """Replaces an object of Apex in a file: it has only the attributes."""


def read(path):
    """Return the content of a checkpoint file, tensors on the CPU.

    Raises:
        AmpError: the file cannot be read, is damaged, or has objects that ``weights_only=True`` does not allow.
    """
    if "weights_only" not in inspect.signature(torch.load).parameters:
        raise AmpError("this needs torch.load(weights_only=True), which was added in torch 1.13; upgrade torch.")
    with files.opened(path) as file, _known_classes():
        try:
            _check_sizes(path, file)
            return torch.load(file, map_location="cpu", weights_only=True)
        except AmpError:
            raise
        except Exception as error:  # torch.load documents no exceptions: they depend on where the file ends
            raise AmpError(_why(path, error)) from None


def _check_sizes(path, file):
    """Raise an error for a zip file whose entries would be larger than the file: torch.save compresses nothing."""
    if zipfile.is_zipfile(file):
        with zipfile.ZipFile(file) as archive:
            unpacked = sum(each.file_size for each in archive.infolist())
        if unpacked > os.fstat(file.fileno()).st_size:
            raise AmpError(f"cannot read {path}: it unpacks to {unpacked} bytes; torch.save does not compress.")
    file.seek(0)


def write(content, path):
    """Write a checkpoint file atomically: an interrupted call leaves no partial file.

    Raises:
        AmpError: the file cannot be written.
    """
    try:
        files.write(path, functools.partial(torch.save, content))
    except AmpError:
        raise
    except RuntimeError as error:  # torch.save on a full disk
        raise AmpError("cannot write {}: {}.".format(path, str(error).splitlines()[0].rstrip("."))) from None


def _known_classes():
    """Return a context in which Apex's scalers are allowed, if this torch supports replacement classes for them."""
    if not hasattr(torch.serialization, "safe_globals"):
        return contextlib.nullcontext()
    # Classes with these names: torch 2.5 accepts only classes, without separate names.
    known = [type(name, (SavedObject,), {"__module__": module}) for module, name in _SCALERS]
    return torch.serialization.safe_globals(known)


def _why(path, error):
    """Return one sentence about an error of ``torch.load``."""
    found = re.search(r"(?:GLOBAL|global|class) `?'?([\w.]+)'?`? (?:was not an allowed|is not)", str(error))
    found = found or re.search(r"Unsupported (?:class|global)[: ]+(?:GLOBAL )?([\w.]+)", str(error))
    if found:
        return (
            f"{path} has an object of {found.group(1)}, which torch.load(weights_only=True) does not read. Load it "
            "where that class is installed, and save its state_dict()."
        )
    first = str(error).strip().partition("\n")[0].partition(". ")[0].rstrip(".")
    detail = f": {first}" if first and not isinstance(error, pickle.UnpicklingError) else ""
    return f"{path} is damaged, or was not written by torch.save{detail}."
