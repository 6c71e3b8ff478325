"""Sequence models read the ids that they are given."""

import numpy as np
import pytest
import tensorflow as tf

import tfdp
from tfdp.layers.item_embedding import EmbeddingError

MODELS = {
    "dpformer": lambda: tfdp.models.DPFormer(5, 4, dim=4, num_blocks=1),
    "transformer": lambda: tfdp.models.SequenceBaseline(5, 4, dim=4, num_blocks=1),
    "gru": lambda: tfdp.models.SequenceBaseline(5, 4, cell="gru", dim=4, num_blocks=1),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("method", ["__call__", "score_next"])
def test_an_id_that_32_bits_do_not_hold_is_refused_as_any_other_out_of_range(name, method):
    ask = getattr(MODELS[name](), method)
    ids = np.array([[0, 2, 3, 1]])
    np.testing.assert_array_equal(ask(ids.astype(np.int32)), ask(ids))
    for wrong in (77, 2**32 + 1, 2**31 + 1):
        with pytest.raises(tf.errors.InvalidArgumentError, match="not in"):
            ask(np.array([[0, 2, 3, wrong]]))


def test_an_error_of_embeddings_takes_no_other_item_for_an_id():
    error = EmbeddingError(5, np.full(6, 0.5))
    with pytest.raises(tf.errors.InvalidArgumentError, match="not in"):
        error(np.array([[2**32 + 1]]))
