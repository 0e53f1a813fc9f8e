"""Opt levels for scripts that do not use Apex: ``ampcompat run --opt-level LEVEL train.py``.

A forced level begins when the script has imported torch (``launch/site/sitecustomize.py``). If the script calls
``amp.initialize``, all of it ends.

    forced_level              prepares models by ``amp.initialize`` when they are first called in training
    trained_modules           which modules hold an optimizer's params; wrapped models
    script_backward           backward passes act as within ``amp.scale_loss``: what they reach is found in the graph
    script_autocast           the script's own ``torch.autocast`` regions
    script_grad_scaler        the script's own ``GradScaler``
    refusals                  what cannot work, and where in the script it is
"""
