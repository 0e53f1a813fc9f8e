"""An optimizer at a level: its replaced methods, the scale of its gradients, and float32 masters of half weights.

    fact                                                owner                                 who asks
    is the next step skipped                            ``overflow_check.StepSkips``          ``step_or_skip``
    what gradients are multiplied by                    ``gradient_scale.HeldGradients``      ``scale_loss``, a step
    what ``.grad`` of a half param shows                ``shown_gradients.ShownGradients``    ``HeldGradients``
    which params have masters, in which chunks          ``optimizer_masters``                 the record, checkpoints
    which half param has which master, in all of them   ``session_masters``                   readers of ``.grad``
    which state a half param has                        ``state_by_param``                    a script
    did half params and masters agree, since which      ``half_and_master_chunks``            ``optimizer_masters``
    version
    may memory have been written, versions unmoved      ``unversioned_writes.WrittenMemory``  the chunks
    do masters have values, or only remainders          ``remainder_chunk.RemainderChunk``       the chunks, a step

``optimizer_record`` puts them together; ``replaced_methods`` and ``step_or_skip`` are what a script calls.
"""

IS_BOOKKEEPING = True  # see support/script_frames.py
