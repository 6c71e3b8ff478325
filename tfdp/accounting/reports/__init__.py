"""Statements, tables and plots. Every number in them comes from the ledger."""

from tfdp._compat.imports import on_demand

__getattr__ = on_demand(__name__, {})  # as in `tfdp.accounting`: modules when used
