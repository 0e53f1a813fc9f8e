"""Apex's ``parallel``: the names of ``ampcompat.apex.parallel``."""

from . import distributed, multiproc, optimized_sync_batchnorm, sync_batchnorm
from .distributed import DistributedDataParallel, Reducer
from .LARC import LARC
from .sync_batchnorm import SyncBatchNorm, convert_syncbn_model, create_syncbn_process_group
