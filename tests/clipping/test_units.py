"""What the rows of a person contribute is added up before the norm, and by nobody else's rows."""

import numpy as np
import pytest
import tensorflow as tf

from tfdp.clipping.sums import forms
from tfdp.clipping.sums.contributions import Layout, OuterProduct, PerExampleGradients, Rows
from tfdp.clipping.sums.gradients import variable_gradient
from tfdp.clipping.sums.units import ids_of_units, of_units, unit_mask
from tfdp.errors import PrivacyError
from tfdp.runtime.xla import compiling

B, K, T, V, D = 6, 3, 4, 7, 5
MASK = np.array([1, 1, 0, 1, 0, 0], bool)  # three rows of each of two persons
NORMAL = np.random.default_rng(0).normal
IDS = np.random.default_rng(1).integers(0, V, (B, T))
WIDE = Layout((0,), (1,))


def contributions():
    left, right = NORMAL(size=(B, T, V)), NORMAL(size=(B, T, D))
    values, whole = NORMAL(size=(B, T, D)), NORMAL(size=(B, V, D))
    table = np.zeros((B, V, D))
    for i, row in enumerate(IDS):
        np.add.at(table[i], row, values[i])
    # What padding computed may be anything.
    for array in (left, right, values, whole):
        array[~MASK] = np.nan
    cast = lambda a: tf.constant(a, tf.float32)  # noqa: E731
    return {
        "outer": ([OuterProduct(cast(left), cast(right), WIDE)],
                  np.einsum("btv,btd->bvd", left, right)),
        "rows": ([Rows(tf.constant(IDS), cast(values))], table),
        "whole": ([PerExampleGradients(cast(whole))], whole),
        "tied": ([Rows(tf.constant(IDS), cast(values)), OuterProduct(cast(left), cast(right))],
                 table + np.einsum("btv,btd->bvd", left, right)),
        "all": ([Rows(tf.constant(IDS), cast(values)), PerExampleGradients(cast(whole)),
                 OuterProduct(cast(left), cast(right))],
                table + whole + np.einsum("btv,btd->bvd", left, right)),
    }  # fmt: skip


@pytest.mark.thorough_after(1)
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("kind", contributions())
def test_a_person_contributes_the_sum_of_its_records(kind, known):
    found, rows = contributions()[kind]
    persons = np.where(MASK[:, None, None], rows, 0).reshape(2, K, V, D).sum(1)
    variable = tf.Variable(tf.zeros([V, D]))
    factors = tf.constant([0.5, 2.0])

    def run(*tensors):
        parts = tf.nest.pack_sequence_as(packed, tensors)
        made = [type(c)(*p, *layouts) for (c, layouts), p in zip(forms, parts, strict=True)]
        units = [of_units(c, tf.constant(MASK), K) for c in made]
        gradient = variable_gradient(variable, units)
        norm, bound = gradient.squared_norm()
        total = gradient.clipped_sum(factors, tf.constant([True, True]))
        return norm, bound, tf.convert_to_tensor(total)

    fields = [[v for v in vars(c).values() if tf.is_tensor(v)] for c in found]
    forms = [(c, [c.layout] if isinstance(c, OuterProduct) else []) for c in found]
    packed = fields
    flat = tf.nest.flatten(fields)
    if not known:
        specs = [tf.TensorSpec([None, *t.shape[1:]], t.dtype) for t in flat]
        run = tf.function(run, input_signature=specs, autograph=False)
    norm, bound, total = run(*flat)
    np.testing.assert_allclose(norm, np.square(persons).reshape(2, -1).sum(1), rtol=1e-5)
    assert np.all(bound.numpy() < 1e-4 * norm.numpy())
    wanted = np.tensordot(factors.numpy(), persons, 1)
    np.testing.assert_allclose(total, wanted, atol=1e-5 * np.abs(wanted).max())


def test_ids_of_padding_are_no_rows_where_rows_are_selected():
    found = of_units(Rows(tf.constant(IDS), tf.ones([B, T, D])), tf.constant(MASK), K, True)
    wanted = np.where(MASK[:, None], IDS, -1).reshape(2, K * T)
    np.testing.assert_array_equal(found.ids, wanted)
    np.testing.assert_array_equal(ids_of_units(tf.constant(IDS), tf.constant(MASK), K), wanted)
    kept = of_units(Rows(tf.constant(IDS), tf.ones([B, T, D])), tf.constant(MASK), K)
    np.testing.assert_array_equal(kept.ids, IDS.reshape(2, -1))


@pytest.mark.thorough
def test_a_person_is_there_if_any_of_its_records_is():
    np.testing.assert_array_equal(unit_mask(tf.constant(MASK), K), [True, True])
    np.testing.assert_array_equal(unit_mask(tf.constant(MASK), 2), [True, True, False])
    assert unit_mask(MASK, None) is MASK
    with pytest.raises(PrivacyError, match="6 rows"):
        unit_mask(tf.constant(MASK), 4)
    spec = [tf.TensorSpec([None], tf.bool)]
    unknown = tf.function(lambda m: unit_mask(m, 4), input_signature=spec)
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="no multiple of `max_records_per_unit`"
    ):
        unknown(tf.constant(MASK))


@pytest.mark.thorough
@pytest.mark.parametrize("count", [forms._MANY_IDS - 1, forms._MANY_IDS])
@pytest.mark.parametrize("jit_compile", [False, True])
def test_many_look_ups_are_merged_as_few_are(count, jit_compile):
    generator = np.random.default_rng(2)
    ids = generator.integers(0, 30, (3, count))
    ids[0, :3], ids[1, :] = -1, ids[0, :]  # padding; the same ids in another example
    values = generator.normal(size=(3, count, 2))
    tables = np.zeros((3, 31, 2))
    for table, own, rows in zip(tables, ids, values, strict=True):
        np.add.at(table, own, rows)  # padding has a row of its own, the last

    @tf.function(autograph=False, jit_compile=jit_compile)
    def merged(ids, values):
        with compiling(jit_compile):
            gradient = variable_gradient(tf.zeros([30, 2]), [Rows(ids, values)])
        return gradient.ids, gradient.values, gradient.squared_norm()[0]

    found, rows, norms = merged(tf.constant(ids), tf.constant(values, tf.float32))
    np.testing.assert_array_equal(found, ids)
    np.testing.assert_allclose(norms, np.square(tables).sum((1, 2)), rtol=1e-5)
    for table, own, merged_rows in zip(tables, ids, rows.numpy(), strict=True):
        first = np.unique(own, return_index=True)[1]
        np.testing.assert_allclose(merged_rows[first], table[own[first]], atol=1e-5)
        assert not np.delete(merged_rows, first, axis=0).any()


def test_ids_that_are_no_rows_stay_with_their_example():
    # Beyond the table's 30 rows; numbered through, one example's would be the other's.
    ids = np.stack([np.full(forms._MANY_IDS, 100), np.full(forms._MANY_IDS, 68)])
    ids[1, 0], ids[0, 0] = -7, 29
    values = tf.ones([2, forms._MANY_IDS, 1])
    gradient = variable_gradient(tf.zeros([30, 1]), [Rows(tf.constant(ids), values)])
    wanted = forms._merged_by_pairs(tf.constant(ids), values, 30)
    np.testing.assert_array_equal(gradient.values, wanted)
