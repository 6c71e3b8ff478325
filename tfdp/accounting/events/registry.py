"""Events to and from JSON-able dicts, exactly."""

import importlib
import inspect
import math

import attr
import dp_accounting
import numpy as np

_REGISTRY = {
    name: cls
    for name, cls in inspect.getmembers(dp_accounting.dp_event, inspect.isclass)
    if issubclass(cls, dp_accounting.DpEvent) and cls is not dp_accounting.DpEvent
}
# tfdp's own event classes, and the modules that register them: a ledger may name any of them in a
# process that has imported none.
_HOMES = {
    "PoissonSampledConcentratedDpEvent": "tfdp.accounting.events.concentrated",
    "RandomAllocationGaussianDpEvent": "tfdp.accounting.events.random_allocation",
    "VisiblySampledGaussianDpEvent": "tfdp.accounting.events.visible_sampling",
    "WishartDpEvent": "tfdp.accounting.events.wishart",
}


def _class_of(name):
    """The event class of a name; None if there is none."""
    if name in _HOMES and name not in _REGISTRY:
        importlib.import_module(_HOMES[name])
    return _REGISTRY.get(name)


def register_event(cls: type) -> type:
    """Class decorator: lets ledgers save and load an event class outside dp_accounting.

    The class must be a frozen attrs subclass of `dp_accounting.DpEvent`. If it also defines
    `rdp(orders)` (its Rényi curve, an array over `orders`) and `adjacencies` (names of the
    adjacencies under which that curve holds), then accountant="rdp" accounts for it. With
    `pld(value_discretization_interval)` (its privacy loss distribution) accountant="pld" does,
    under the same adjacencies. `doubled()` gives the event at twice the sensitivity, for
    replace-one.

    Args:
        cls: the class; its name must be unique among all event classes.

    Returns:
        `cls` itself.

    Raises:
        ValueError: if `cls` is no attrs event class, or another class has its name.
    """
    if not (inspect.isclass(cls) and issubclass(cls, dp_accounting.DpEvent)):
        raise ValueError(
            f"Argument `cls` must be a subclass of dp_accounting.DpEvent. Received: cls={cls!r}"
        )
    if "__attrs_attrs__" not in vars(cls):
        raise ValueError(
            "Argument `cls` must be decorated with attr.s(frozen=True, auto_attribs=True) before "
            f"it is registered. Received: cls={cls!r}"
        )
    known = _class_of(cls.__name__)
    if known is not None and (known.__module__, known.__qualname__) != (
        cls.__module__,
        cls.__qualname__,
    ):
        raise ValueError(
            f"Argument `cls` must have a unique name; {known.__module__} already has a class of "
            f"this name. Received: cls={cls!r}"
        )
    _REGISTRY[cls.__name__] = cls
    return cls


def event_to_dict(event):
    """Turns an event, with all events inside it, into a JSON-able dict.

    Args:
        event: an instance of a dp_accounting event class or of a registered one.

    Returns:
        A dict whose entry "class_name" is the class's name; the others are its fields. Floats
        survive JSON exactly; infinities and tuples are marked as such.

    Raises:
        ValueError: if the class is not registered.
    """
    name = type(event).__name__
    if _REGISTRY.get(name) is not type(event):
        raise ValueError(
            "Argument `event` must be of a class known to dp_accounting or registered with "
            f"tfdp.accounting.register_event. Received: event={event!r}"
        )
    fields = {f.name: _encode(getattr(event, f.name)) for f in attr.fields(type(event))}
    return {"class_name": name, **fields}


def event_from_dict(encoded):
    """The inverse of `event_to_dict`.

    Args:
        encoded: a dict made by `event_to_dict`, possibly through JSON.

    Returns:
        An event equal to the original.

    Raises:
        ValueError: if the class is unknown here.
    """
    name = encoded.get("class_name")
    cls = _class_of(name)
    if cls is None:
        raise ValueError(
            "Argument `encoded` must name a registered event class; import the module that "
            "defines it, or install a dp_accounting that has it. "
            f"Received: encoded={encoded!r}"
        )
    return cls(**{k: _decode(v) for k, v in encoded.items() if k != "class_name"})


def _encode(value):
    if isinstance(value, dp_accounting.DpEvent):
        return event_to_dict(value)
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, np.ndarray):
        value = tuple(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": repr(value)}
    if isinstance(value, tuple):
        return {"tuple": [_encode(v) for v in value]}
    if isinstance(value, list):
        return [_encode(v) for v in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise ValueError(
        "Fields of an event must be numbers, strings, events, or lists and tuples of these. "
        f"Received: {value!r}"
    )


def _decode(value):
    if isinstance(value, list):
        return [_decode(v) for v in value]
    if not isinstance(value, dict):
        return value
    if "class_name" in value:
        return event_from_dict(value)
    if "float" in value:
        return float(value["float"])
    return tuple(_decode(v) for v in value["tuple"])
