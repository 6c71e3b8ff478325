"""Several devices and workers: samplers, checks, backups. One device needs none of it.

The private step itself is in `models` and `optimizers`; here is where it meets the other replicas.
"""

from tfdp.distribution.backup import BackupAndRestore
from tfdp.distribution.host_selection import select_on_host
from tfdp.distribution.poisson import poisson_batches

__all__ = ["BackupAndRestore", "poisson_batches", "select_on_host"]


def __dir__():
    return sorted(__all__)
