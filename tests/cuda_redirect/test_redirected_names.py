"""The table of redirections with the installed torch: every name is replaced, and restored."""

import sys

import pytest
import torch
import torch.cuda.comm

from ampcompat.cuda_redirect import redirect_device
from ampcompat.errors import AmpValueError
from ampcompat.launch.cuda_redirect import name_table
from ampcompat.launch.cuda_redirect.replacements import device_arguments
from ampcompat.support.torch_compat import features, torch_names

IMPORTED = [row for row in name_table.rows() if name_table.lazy_module(row) is None]
ABSENT = object()

#: Public names of torch.cuda that do not use CUDA, or that are modules and classes which are not replaced.
NOT_REPLACED = set(
    "AcceleratorError CudaError DeferredCudaCallError OutOfMemoryError check_error classproperty cudaStatus Device "
    "Any Callable Dict Optional Tuple Union List Set NewType Popen cast lru_cache cache Enum auto "
    "find_cuda_windows_lib raise_from".split()
)


def entry_of(owner, name):
    return vars(owner).get(name, ABSENT)


def present_names():
    """Return [(row, owner, name)] of what this torch has."""
    found = []
    for row in IMPORTED:
        owner = torch_names.find(row.owner)
        found += [(row, owner, name) for name in row.names if owner is not None and hasattr(owner, name)]
    return found


def test_every_name_is_replaced_and_restored():
    before = [(row, owner, name, entry_of(owner, name), getattr(owner, name)) for row, owner, name in present_names()]
    assert len(before) > 150
    with redirect_device("cpu"):
        same = [row.owner + "." + name for row, owner, name, _, value in before if getattr(owner, name) is value]
    # What this torch supports on a CPU is not replaced.
    supported = {"torch.device", "torch._amp_foreach_non_finite_check_and_unscale_", "torch._amp_update_scale_"}
    supported |= {"torch.cuda.amp.custom_fwd", "torch.cuda.amp.custom_bwd"}
    if not hasattr(torch, "is_autocast_cpu_enabled"):  # then autocast knows CUDA alone, and these stay as they are
        supported |= {"torch.is_autocast_enabled", "torch.set_autocast_enabled"}
    assert set(same) <= supported
    changed = [row.owner + "." + name for row, owner, name, entry, _ in before if entry_of(owner, name) is not entry]
    assert changed == []


def test_a_name_of_builds_with_cuda_is_added():
    before = entry_of(torch._C, "_cuda_clearCublasWorkspaces")
    with redirect_device("cpu"):
        assert torch._C._cuda_clearCublasWorkspaces() is None
    assert entry_of(torch._C, "_cuda_clearCublasWorkspaces") is before


@pytest.mark.parametrize("row", IMPORTED, ids=lambda row: row.owner + "." + row.names[0])
def test_an_owner_exists_or_this_torch_lacks_it(row):
    owner = torch_names.find(row.owner)
    if owner is None:
        parts = row.owner.split(".")
        assert any(not hasattr(torch_names.find(".".join(parts[:i])), parts[i]) for i in range(1, len(parts)))
    elif row.rule == name_table.REPLACED:
        assert callable(row.detail)


def test_every_public_function_of_torch_cuda_has_a_row():
    rows = {name for row in IMPORTED if row.owner == "torch.cuda" for name in row.names}
    own = [name for name, value in vars(torch.cuda).items() if callable(value) and not name.startswith("_")]
    missing = [name for name in own if name not in rows | NOT_REPLACED and not name.endswith("Storage")]
    assert [name for name in missing if name not in ("ComplexFloatTensor", "ComplexDoubleTensor")] == []


def test_every_factory_that_torch_lists_has_a_row():
    if not hasattr(torch.utils, "_device"):
        pytest.skip("this torch has no list of its factories")
    known = {function.__name__ for function in torch.utils._device._device_constructors()}
    rows = {name for row in IMPORTED if row.detail is device_arguments.factory for name in row.names}
    rows |= {"fft_fftfreq", "fft_rfftfreq"}
    assert known - rows - {"fill", "vander"} == set()  # torch 2.0 to 2.5 list these two, which take no device


def test_redirections_nest_and_an_exception_undoes_them():
    original = torch.zeros
    with pytest.raises(ZeroDivisionError):
        with redirect_device("cpu"):
            with redirect_device("cpu"):
                assert torch.zeros(1, device="cuda").is_cuda
            assert torch.zeros(1, device="cuda").is_cuda
            1 / 0
    assert torch.zeros is original and not torch.zeros(1).is_cuda
    assert torch.device("cuda").type == "cuda" and type(torch.device) is type
    assert not [finder for finder in sys.meta_path if type(finder).__name__ == "ImportHook"]


@pytest.mark.parametrize("device", ["cuda", "mps", "xpu", "tpu"])
def test_a_missing_device_is_an_error_that_changes_nothing(device):
    if device != "cuda" and device in features.available_devices():
        pytest.skip("this machine has that device")
    original = torch.zeros
    with pytest.raises(AmpValueError, match="expected cpu, mps, xpu or xla, and this torch has cpu"):
        with redirect_device(device):
            pass
    assert torch.zeros is original
