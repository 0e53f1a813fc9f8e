"""The float32 masters of half weights, which optimizers step on in their place.

fact                                                owner                                 who asks
which params of an optimizer have masters           ``optimizer_masters``                 its record, checkpoints
which half param has which master, in all of them   ``session_masters``                   readers of ``.grad``
did half params and masters agree, since which      ``master_sync``                       ``optimizer_masters``
version
may memory have been written, versions unmoved      ``unversioned_writes.WrittenMemory``  the chunks
what ``.grad`` of a half param shows                ``grad_of_half_params``               ``HeldGradients``
which state of an optimizer a half param has        ``state_of_half_params``              a script
do masters have values, or only remainders          ``remainder_chunk.RemainderChunk``    the chunks, a step
"""

IS_BOOKKEEPING = True  # see support/script_frames.py
