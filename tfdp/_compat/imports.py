"""Doing something as soon as another package is imported, whoever imports it."""

import importlib.abc
import importlib.util
import sys


def when_imported(name, function):
    """Calls a function after a package has been imported: now, if it has been."""
    if name in sys.modules:
        function()
    else:
        sys.meta_path.insert(0, _Finder(name, function))


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, name, function):
        self._name = name
        self._function = function

    def find_spec(self, fullname, path=None, target=None):
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            self._function()

        spec.loader.exec_module = exec_module
        return spec
