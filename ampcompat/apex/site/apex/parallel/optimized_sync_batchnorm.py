"""Batch norm over processes, by the name of Apex's faster variant."""

from ampcompat.apex.parallel.sync_batchnorm import SyncBatchNorm
