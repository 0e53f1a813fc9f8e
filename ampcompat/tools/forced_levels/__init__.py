"""Opt levels for scripts that do not use Apex: ``python -m ampcompat run --opt-level LEVEL train.py``.

``level_startup`` begins when the script has imported torch. If the script calls ``amp.initialize``, all of it ends.

    forced_level    prepares models by ``amp.initialize`` when they are first called in training
    models          which modules hold an optimizer's params; wrapped models
    layers          layers that the script calls outside of a model's ``forward``
    backward        backward passes act as within ``amp.scale_loss``
    graph           which tensors a backward pass reaches
    autocast        the script's own ``torch.autocast`` regions
    grad_scaler     the script's own ``GradScaler``
    refusals        what cannot work, and where in the script it is
"""
