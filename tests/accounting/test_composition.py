"""Compositions are brought to one level without losing a count; sensitivities double."""

import dp_accounting as d
import pytest

from tfdp.accounting.adjacency import double_sensitivity
from tfdp.accounting.composition import compose

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
