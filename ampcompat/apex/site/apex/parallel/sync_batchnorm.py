"""Batch norm over processes."""

from ampcompat.apex.parallel.sync_batchnorm import SyncBatchNorm, convert_syncbn_model, create_syncbn_process_group
