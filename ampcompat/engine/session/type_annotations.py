"""The types of ``amp.initialize``'s options, for type checkers only: Python 3.7 has no ``TypedDict``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, List, Optional, Type, Union

if TYPE_CHECKING:
    import torch
    from typing_extensions import TypedDict

    #: A layer to keep in float32: its type, the module, a pattern of its name, or a predicate ``f(name, module)``.
    Layer = Union[Type[torch.nn.Module], torch.nn.Module, str, Callable[[str, torch.nn.Module], bool]]
    KeptFloat32 = Union[Layer, List[Layer]]

    class InitializeOptions(TypedDict, total=False):
        """What ``amp.initialize`` takes by keyword, except for ``enabled`` and ``opt_level``."""

        cast_model_type: Optional[torch.dtype]
        patch_torch_functions: Optional[bool]
        keep_batchnorm_fp32: Union[bool, str, None]
        master_weights: Optional[bool]
        loss_scale: Union[float, str, None]
        cast_model_outputs: Optional[torch.dtype]
        num_losses: int
        verbosity: int
        min_loss_scale: Optional[float]
        max_loss_scale: float
        patch_torch_functions_type: Optional[torch.dtype]
        keep_fp32: Optional[KeptFloat32]
        init_scale: Optional[float]
        growth_factor: Optional[float]
        backoff_factor: Optional[float]
        growth_interval: Optional[int]
        hysteresis: Optional[int]
        skip_static_overflow: bool
        max_skips: int
        raise_on_max_skips: bool
        process_group: Any
        diagnose: bool
        free_half_grads: bool
        store_param_remainders: bool
        allow_half_model: bool
