"""Row optimizers as TensorFlow's TPU embeddings know them."""

import tensorflow as tf

from tfdp.optimizers.rows import LazyAdam, RowAdagrad, RowSGD

# A TPU embedding updates every row that was looked up, with a gradient of zero where its id did
# not survive. Only rules that leave such a row as it is, bit for bit, hide that it was looked up.
_MOVES = {
    "Adam": "its moments decay, and move the row, at every look-up",
    "AdagradMomentum": "its momentum moves the row at every look-up",
    "FTRL": "it computes the row anew from its linear slot, which starts at zero",
}
_NAMES = {LazyAdam: "Adam"}


def tpu_optimizer(row_optimizer, slot_variable_creation_fn=None):
    """The `tf.tpu.experimental.embedding` optimizer that updates rows as a row optimizer does.

    | row optimizer | TPU embedding optimizer |
    |---|---|
    | `RowSGD` | `SGD` |
    | `RowAdagrad(epsilon=0)` | `Adagrad` |
    | `LazyAdam` | refused: `Adam` moves rows that did not survive; so do `FTRL` and the like |

    Both sum a row's gradients, of all look-ups and its noise, before they update it
    (`use_gradient_accumulation=True`): otherwise Adagrad's accumulator would see the signal and
    the noise one after another.

    Args:
        row_optimizer: `RowSGD` or `RowAdagrad`.
        slot_variable_creation_fn: who makes the slots; as TensorFlow's argument.

    Raises:
        ValueError: for rules that change a row whose gradient is zero, or that the TPU embedding
            does not have.
    """
    embedding = tf.tpu.experimental.embedding
    name = _NAMES.get(type(row_optimizer), type(row_optimizer).__name__)
    if name in _MOVES:
        _refuse(row_optimizer, f"{name} would show which rows were looked up: {_MOVES[name]}")
    if type(row_optimizer) not in (RowSGD, RowAdagrad):
        _refuse(row_optimizer, "no other rule is known to leave rows without a gradient alone")
    if row_optimizer.weight_decay is not None:
        _refuse(row_optimizer, "`weight_decay` would shrink every row that was looked up")
    common = {
        # A callable, so that a schedule or a new value is followed.
        "learning_rate": lambda: tf.cast(row_optimizer.learning_rate, tf.float32),
        "use_gradient_accumulation": True,
        # TensorFlow's own False is no value of this enumeration for newer protobufs.
        "low_dimensional_packing_status": 0,
        "slot_variable_creation_fn": slot_variable_creation_fn,
    }
    if type(row_optimizer) is RowSGD:
        del common["slot_variable_creation_fn"]  # has no slots
        return embedding.SGD(**common)
    if row_optimizer.row_wise:
        _refuse(row_optimizer, "TPU embeddings keep an accumulator for each element: row_wise=True")
    if row_optimizer.epsilon != 0:
        _refuse(row_optimizer, f"TPU embeddings have no epsilon: epsilon={row_optimizer.epsilon}")
    if not row_optimizer.initial_accumulator_value > 0:
        _refuse(
            row_optimizer,
            "a row whose gradient is zero would be divided 0/0: "
            f"initial_accumulator_value={row_optimizer.initial_accumulator_value}",
        )
    return embedding.Adagrad(
        initial_accumulator_value=row_optimizer.initial_accumulator_value, **common
    )


def _refuse(row_optimizer, why):
    raise ValueError(
        "Argument `embedding_optimizer` of tables in a TPU embedding must be "
        "RowSGD(learning_rate), or RowAdagrad(learning_rate, epsilon=0) with a positive "
        f"`initial_accumulator_value`. Received: {type(row_optimizer).__name__}; {why}"
    )
