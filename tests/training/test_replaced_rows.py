"""The two batches by which examples that change each other's gradients are found."""

import numpy as np
import pytest

from tfdp.training.replaced_rows import ROWS, ReplacedRows


@pytest.mark.parametrize("count", [2, 3, 4, ROWS, 64])
@pytest.mark.parametrize("may_move", [False, True])
def test_rows_stay_or_are_replaced_in_every_draw(count, may_move):
    for _ in range(200):
        rows = ReplacedRows.draw(count, may_move)
        kept, moved = rows.stay
        assert rows.first.shape == rows.second.shape == (ROWS,)
        assert max(rows.first.max(), rows.second.max()) < count
        np.testing.assert_array_equal(rows.first[kept], rows.second[moved])
        assert len(set(kept)) == len(set(moved)) == len(kept) == 7
        replaced = np.setdiff1d(np.arange(ROWS), moved)
        if not may_move:
            np.testing.assert_array_equal(kept, moved)
            assert np.mean(rows.first[replaced] != rows.second[replaced]) > 0.3
        else:  # what goes by odd and even places is then found whichever rows are compared
            assert np.all((kept - moved) % 2 == 1)
        compared, others = rows.compared
        assert set(compared) < set(kept) and set(others) < set(moved)
        np.testing.assert_array_equal(rows.first[compared], rows.second[others])
        assert rows.first_differentiated[compared].all()
        assert rows.second_differentiated[others].all()
        # What adds up, such as a norm of gradients, differs then.
        assert rows.first_differentiated.sum() == 3 and rows.second_differentiated.sum() == 7
