"""Accounting works where TensorFlow is not installed."""

import subprocess
import sys


def test_accounting_imports_neither_tensorflow_nor_keras():
    code = (
        "import sys, tfdp.accounting; import tfdp.accounting.budget_table;"
        "print([m for m in ('tensorflow', 'keras', 'jax', 'torch') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (result.returncode, result.stdout.strip()) == (0, "[]"), result.stderr
