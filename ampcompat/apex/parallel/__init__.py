"""What scripts import from ``apex.parallel``, over ``torch.distributed``.

Owns: the names.
Must not touch: the process group; scripts open it.
The surprise: it works without one as well: a world of one process averages nothing.
"""

from .balanced import DataParallelCriterion, DataParallelModel, gather
from .distributed import DistributedDataParallel, Reducer
from .larc import LARC
from .sync_batchnorm import SyncBatchNorm, convert_syncbn_model, create_syncbn_process_group
