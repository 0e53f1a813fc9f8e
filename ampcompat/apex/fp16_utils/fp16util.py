"""Conversion of models to half, and lists of float32 master params, including flat ones.

On a CPU, half products in these networks are emulated. A flat master is one vector of all params, so all params must
have the same dtype; a model with float32 batch norms cannot have one.
"""

import torch

from ... import opt_levels
from ...engine.session import process_state
from ...errors import AmpTypeError, AmpValueError
from ...support import tensor_lists
from ..multi_tensor.flatten import flatten, unflatten
from .emulation import emulate

clip_grad_norm = torch.nn.utils.clip_grad_norm_


def dtypes():
    """Return the ``DtypePair`` of this process: float16 and float32, or those given on the command line."""
    return opt_levels.parse_dtypes(process_state.command_line().get("dtypes")) or opt_levels.HALF


class tofp16(torch.nn.Module):
    """A layer that casts its input to half."""

    def forward(self, input):
        """Return ``input`` in half."""
        return input.to(dtypes().low)


def BN_convert_float(module):
    """Cast batch norms that have weights, including ``module`` itself, back to float32; return ``module``."""
    for inner in module.modules():
        if _is_batch_norm(inner):
            convert_module(inner, dtypes().high)
    return emulate(module, dtypes())


def network_to_half(network):
    """Return ``network`` in half, except for its batch norms, after a layer that casts the input."""
    return torch.nn.Sequential(tofp16(), BN_convert_float(network.to(dtypes().low)))


def convert_module(module, dtype):
    """Cast the floating-point params and buffers of ``module`` itself, not those of its submodules."""
    owned = list(module._parameters.values()) + list(module._buffers.values())
    for tensor in owned:
        if tensor is None or not tensor.is_floating_point() or tensor.dtype is dtype:
            continue
        grad, tensor.grad = tensor.grad, None  # torch raises if data and gradient differ in dtype
        tensor.data = tensor.data.to(dtype)
        if grad is not None:
            tensor.grad = grad.to(dtype)


def convert_network(network, dtype):
    """Cast floating-point params and buffers of ``network``, except those of batch norms with weights; return it."""
    for module in network.modules():
        if _is_batch_norm(module):
            continue
        convert_module(module, dtype)
        if isinstance(module, torch.nn.RNNBase):
            module.flatten_parameters()
    return emulate(network, dtypes()._replace(low=dtype))


def _is_batch_norm(module):
    return isinstance(module, torch.nn.modules.batchnorm._BatchNorm) and module.affine


class FP16Model(torch.nn.Module):
    """A network in half, except for its batch norms, which casts its inputs. The network is cast in place."""

    def __init__(self, network):
        super().__init__()
        self.network = convert_network(network, dtype=dtypes().low)

    def forward(self, *inputs):
        """Return the network's output for the inputs in half; integer inputs are not cast."""
        low = dtypes().low
        return self.network(*[tensor.to(low) if tensor.is_floating_point() else tensor for tensor in inputs])


# -- masters as lists --------------------------------------------------------------------------------------------------


def prep_param_lists(model, flat_master=False):
    """Return (params of the model that require gradients, their float32 masters).

    Args:
        model: a module, usually in half.
        flat_master: whether the second list has one vector, with a gradient, for all params.

    Raises:
        AmpTypeError: a flat master for params with different dtypes.
        AmpValueError: no param requires a gradient.
    """
    emulate(model, dtypes())
    model_params = [param for param in model.parameters() if param.requires_grad]
    high = dtypes().high
    if not flat_master:
        masters = [param.detach().to(high, copy=True) for param in model_params]
        return model_params, [master.requires_grad_() for master in masters]
    if not model_params:
        raise AmpValueError("prep_param_lists(flat_master=True): no param of the model requires a gradient.")
    found = sorted({str(param.dtype) for param in model_params})
    if len(found) > 1:
        raise AmpTypeError(
            "prep_param_lists(flat_master=True) needs params of one dtype and found {}. Use flat_master=False for a "
            "model whose batch norms are float32.".format(" and ".join(found))
        )
    master = flatten([param.detach() for param in model_params]).to(high, copy=True)
    master = torch.nn.Parameter(master)
    master.grad = torch.zeros_like(master)
    return model_params, [master]


def model_grads_to_master_grads(model_params, master_params, flat_master=False):
    """Copy the gradients of the model's params to their masters; a param without one leaves its master without one."""
    with torch.no_grad():
        if flat_master:
            grads = [torch.zeros_like(param) if param.grad is None else param.grad for param in model_params]
            flat = flatten(grads).to(master_params[0].dtype)
            if master_params[0].grad is None:
                master_params[0].grad = flat
            else:
                master_params[0].grad.copy_(flat)
            return
        targets, sources = [], []
        for model, master in zip(model_params, master_params):
            if model.grad is None:
                master.grad = None
                continue
            if master.grad is None:
                master.grad = torch.empty_like(master)
            targets.append(master.grad)
            sources.append(model.grad.to_dense() if model.grad.is_sparse else model.grad)
        _copy(targets, sources)


def master_params_to_model_params(model_params, master_params, flat_master=False):
    """Copy the masters into the model's params, rounding."""
    with torch.no_grad():
        if flat_master:
            master_params = unflatten(master_params[0], model_params)
        _copy(model_params, master_params)


def _copy(targets, sources):
    """Copy pairwise, with one operation per device."""
    by_device = {}
    for target, source in zip(targets, sources):
        pairs = by_device.setdefault((target.device, source.device), ([], []))
        pairs[0].append(target)
        pairs[1].append(source)
    for pairs in by_device.values():
        tensor_lists.copy_(*pairs)


def to_python_float(tensor):
    """Return the number in a tensor or sequence of one element."""
    return tensor.item() if hasattr(tensor, "item") else tensor[0]
