"""An optimizer at a level: its replaced methods, and the scale of its gradients.

    fact                                                owner                                 who asks
    is the next step skipped                            ``overflow_check.StepSkips``          ``step_or_skip``
    what gradients are multiplied by                    ``gradient_scale.HeldGradients``      ``scale_loss``, a step
    which float32 masters it steps on                   ``masters.OptimizerMasters``          the record, checkpoints

``optimizer_record`` puts them together; ``replaced_methods`` and ``step_or_skip`` are what a script calls.
"""

IS_BOOKKEEPING = True  # see support/script_frames.py
