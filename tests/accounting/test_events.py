"""Events survive JSON exactly, all of dp_accounting's and registered ones."""

import inspect
import json
import math

import attr
import dp_accounting
import numpy as np
import pytest

from tfdp.accounting import epsilon, register_event
from tfdp.accounting.events.registry import event_from_dict, event_to_dict

_VALUES = {
    "noise_multiplier": 0.1 + 0.2,
    "noise_parameter": 1 / 3,
    "num_buckets": 4,
    "sensitivity": 2,
    "count": 7,
    "events": [dp_accounting.GaussianDpEvent(1.5), dp_accounting.NoOpDpEvent()],
    "event": dp_accounting.LaplaceDpEvent(2.5),
    "sampling_probability": 1e-3,
    "source_dataset_size": 1000,
    "sample_size": 10,
    "step_counts": [3, 4],
    "mean": 5.0,
    "shape": math.inf,
    "standard_deviation": 1.25,
    "sensitivities": (0.0, 1.0),
    "sampling_probs": (0.25, 0.75),
    "rho": 0.1,
    "xi": 0.0,
    "dataset_size": 100,
    "truncated_batch_size": 20,
}
_CLASSES = [
    cls
    for _, cls in inspect.getmembers(dp_accounting.dp_event, inspect.isclass)
    if issubclass(cls, dp_accounting.DpEvent) and cls is not dp_accounting.DpEvent
]


@register_event
@attr.s(frozen=True, slots=True, auto_attribs=True)
class HalfRhoDpEvent(dp_accounting.DpEvent):
    """A stand-in for an event of our own: the Rényi curve of a Gaussian."""

    sigma: float

    adjacencies = ("add_or_remove_one", "zero_out")

    def rdp(self, orders):
        return np.asarray(orders) / (2 * self.sigma**2)


def _through_json(event):
    return event_from_dict(json.loads(json.dumps(event_to_dict(event), allow_nan=False)))


def test_there_are_event_classes_to_test():
    assert len(_CLASSES) >= 10


@pytest.mark.parametrize("cls", _CLASSES, ids=lambda cls: cls.__name__)
def test_every_event_class_round_trips(cls):
    event = cls(**{field.name: _VALUES[field.name] for field in attr.fields(cls)})
    nested = dp_accounting.SelfComposedDpEvent(dp_accounting.ComposedDpEvent([event]), 2)
    assert _through_json(event) == event
    assert _through_json(nested) == nested


def test_a_registered_event_round_trips_and_is_accounted_by_its_own_curve():
    event = HalfRhoDpEvent(1.7)
    assert _through_json(event) == event
    gaussian = dp_accounting.GaussianDpEvent(1.7)
    composed = dp_accounting.ComposedDpEvent([dp_accounting.SelfComposedDpEvent(event, 3)])
    expected = epsilon(dp_accounting.SelfComposedDpEvent(gaussian, 3), 1e-5, "rdp")
    assert epsilon(composed, 1e-5, "rdp") == pytest.approx(expected, rel=1e-12)
    with pytest.raises(ValueError, match='Use accountant="rdp"'):
        epsilon(event, 1e-5, "pld")
    with pytest.raises(ValueError, match='no rule .* adjacency "replace_one"'):
        epsilon(event, 1e-5, "rdp", "replace_one")


def test_an_event_class_that_is_not_registered_is_refused():
    @attr.s(frozen=True, auto_attribs=True)
    class Unknown(dp_accounting.DpEvent):
        x: float

    with pytest.raises(ValueError, match="register_event"):
        event_to_dict(Unknown(1.0))
    with pytest.raises(ValueError, match="import the module"):
        event_from_dict({"class_name": "Unknown", "x": 1.0})


def test_a_name_can_be_registered_once_only():
    @attr.s(frozen=True, auto_attribs=True)
    class GaussianDpEvent(dp_accounting.DpEvent):
        noise_multiplier: float

    with pytest.raises(ValueError, match="a unique name"):
        register_event(GaussianDpEvent)
    with pytest.raises(ValueError, match="subclass of dp_accounting.DpEvent"):
        register_event(dict)


def test_numpy_numbers_become_plain_ones():
    event = dp_accounting.GaussianDpEvent(np.float64(1.5))
    assert type(event_to_dict(event)["noise_multiplier"]) is float
