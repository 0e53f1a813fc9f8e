"""Conversion of models to half, lists of float32 master params, including flat ones, and loss scalers for loops.

On a CPU, half products in these networks are emulated. A flat master is one vector of all params, so all params must
have the same dtype; a model with float32 batch norms cannot have one.
"""

import torch

from ... import opt_levels
from ...engine.session import process_state
from ...errors import AmpTypeError, AmpValueError
from ...support import tensor_lists
from ..multi_tensor.functions import flatten, unflatten
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
        tensor_lists.copy_(targets, sources)


def master_params_to_model_params(model_params, master_params, flat_master=False):
    """Copy the masters into the model's params, rounding."""
    with torch.no_grad():
        if flat_master:
            master_params = unflatten(master_params[0], model_params)
        tensor_lists.copy_(model_params, master_params)


def to_python_float(tensor):
    """Return the number in a tensor or sequence of one element."""
    return tensor.item() if hasattr(tensor, "item") else tensor[0]


class LossScaler:
    """A static loss scale: losses are multiplied by it.

    A loop calls ``has_overflow`` and decides itself whether to step. The attributes have Apex's names, because old
    checkpoints contain pickled scalers. ``FP16_Optimizer`` uses ``engine.loss_scaling.loss_scaler`` instead.
    """

    def __init__(self, scale=1):
        self.cur_scale = scale

    def has_overflow(self, params):
        """Return False: a static scale has no overflow check."""
        return False

    def update_scale(self, overflow):
        """Do nothing."""

    @property
    def loss_scale(self):
        """The scale."""
        return self.cur_scale

    def scale_gradient(self, module, grad_in, grad_out):
        """Return the gradients ``grad_in``, scaled: a hook for ``module.register_backward_hook``."""
        return tuple(None if grad is None else self.loss_scale * grad for grad in grad_in)

    def backward(self, loss, retain_graph=False):
        """Run backward from the scaled loss."""
        (loss * self.loss_scale).backward(retain_graph=retain_graph)


class DynamicLossScaler(LossScaler):
    """A dynamic loss scale: divided after an overflow, multiplied after ``scale_window`` iterations without overflow.

    Args:
        scale_factor: the scale is divided or multiplied by it; it never falls below 1.
        scale_window: iterations without overflow before the scale grows.
    """

    def __init__(self, init_scale=2**32, scale_factor=2.0, scale_window=1000):
        super().__init__(init_scale)
        self.cur_iter = 0
        self.last_overflow_iter = -1
        self.scale_factor = scale_factor
        self.scale_window = scale_window

    def has_overflow(self, params):
        """Return whether the gradient of a param contains inf or nan."""
        return tensor_lists.has_non_finite([param.grad for param in params if param.grad is not None])

    def update_scale(self, overflow):
        """Update the scale after one iteration."""
        if overflow:
            self.cur_scale = max(self.cur_scale / self.scale_factor, 1)
            self.last_overflow_iter = self.cur_iter
        elif (self.cur_iter - self.last_overflow_iter) % self.scale_window == 0:
            self.cur_scale *= self.scale_factor
        self.cur_iter += 1


def dynamic_scaler_state(values):
    """Return the attributes of a ``DynamicLossScaler`` as the state dict of the engine's ``LossScaler``."""
    unskipped = values.get("cur_iter", 0) - values.get("last_overflow_iter", -1) - 1
    return {"loss_scale": values["cur_scale"], "unskipped": unskipped % values.get("scale_window", 1000)}
