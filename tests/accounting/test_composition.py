"""Compositions are brought to one level without losing a count; sensitivities double."""

import dp_accounting as d
import pytest

from tfdp.accounting.events.adjacency import double_sensitivity
from tfdp.accounting.events.composition import compose, training_event

GAUSSIAN, LAPLACE = d.GaussianDpEvent(2.0), d.LaplaceDpEvent(3.0)


def test_counts_of_nested_compositions_multiply():
    inner = d.ComposedDpEvent([GAUSSIAN, d.SelfComposedDpEvent(LAPLACE, 3), d.NoOpDpEvent()])
    nested = d.SelfComposedDpEvent(inner, 5)
    expected = d.ComposedDpEvent(
        [d.SelfComposedDpEvent(GAUSSIAN, 2 * 5 + 7), d.SelfComposedDpEvent(LAPLACE, 2 * 5 * 3)]
    )
    assert compose([(nested, 2), (GAUSSIAN, 7)]) == expected


@pytest.mark.parametrize(
    "event, doubled",
    [
        (GAUSSIAN, d.GaussianDpEvent(1.0)),
        (LAPLACE, d.LaplaceDpEvent(1.5)),
        (d.dp_event.DiscreteLaplaceDpEvent(0.5, 3), d.dp_event.DiscreteLaplaceDpEvent(0.5, 6)),
        (d.dp_event.ZCDpEvent(0.25, 0.5), d.dp_event.ZCDpEvent(1.0, 1.5)),
        (
            d.SelfComposedDpEvent(d.PoissonSampledDpEvent(0.1, GAUSSIAN), 4),
            d.SelfComposedDpEvent(d.PoissonSampledDpEvent(0.1, d.GaussianDpEvent(1.0)), 4),
        ),
    ],
)
def test_one_contribution_that_turns_into_another_moves_the_sum_twice_as_far(event, doubled):
    found = double_sensitivity(event)
    assert found == doubled


def test_two_records_that_are_drawn_by_themselves_are_a_mixture_already():
    # None, one or both of them: with probabilities 9/16, 6/16 and 1/16.
    expected = d.dp_event.MixtureOfGaussiansDpEvent(1.5, (0, 1, 2), (0.5625, 0.375, 0.0625))
    assert training_event(1.5, 0.25, records=2) == expected
