"""Events of single mechanisms, their composition and adjacency. No ledger."""

from tfdp._compat.imports import on_demand

__getattr__ = on_demand(__name__, {})  # as in `tfdp.accounting`: modules when used
