"""Charges: sampling, mechanisms, the ledger and its history. Prints nothing."""

from tfdp._compat.imports import on_demand

__getattr__ = on_demand(__name__, {})  # as in `tfdp.accounting`: modules when used
