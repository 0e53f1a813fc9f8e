"""``apex.parallel`` over ``torch.distributed``. Without a process group, a single process is assumed."""

from ...support.torch_compat.process_groups import import_functions_of_default_group
from .data_parallel import DataParallelCriterion, DataParallelModel, gather
from .distributed import DistributedDataParallel, Reducer
from .larc import LARC
from .sync_batchnorm import SyncBatchNorm, convert_syncbn_model, create_syncbn_process_group

import_functions_of_default_group()
