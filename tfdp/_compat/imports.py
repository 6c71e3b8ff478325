"""Imports at the time when they are needed: of one's own names, and after another package's."""

import importlib.abc
import importlib.util
import sys


def on_demand(package, homes):
    """The `__getattr__` of a package whose names are imported when they are first used.

    Args:
        package: its `__name__`.
        homes: dict of a module, relative or not, to the public names that live there. No name
            may be that of a module of the package: importing the module would take its place.

    Returns:
        A function for PEP 562, which finds the package's own modules, too.
    """
    home_of = {name: module for module, names in homes.items() for name in names}

    def __getattr__(name):
        if name in home_of:
            value = getattr(importlib.import_module(home_of[name], package), name)
        elif name.startswith("__") or importlib.util.find_spec(f"{package}.{name}") is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        else:
            value = importlib.import_module(f"{package}.{name}")
        setattr(sys.modules[package], name, value)
        return value

    return __getattr__


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
        self._is_asking = False

    def find_spec(self, fullname, path=None, target=None):
        if fullname != self._name or self._is_asking:
            return None
        self._is_asking = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._is_asking = False
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        # Who asks need not import: TensorFlow looks where Keras is, and imports it later.
        def exec_module(module):
            sys.meta_path.remove(self)
            execute(module)
            self._function()

        spec.loader.exec_module = exec_module
        return spec
