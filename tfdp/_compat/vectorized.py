"""tf.vectorized_map, without the products of matrices in which TensorFlow corrupts memory.

TensorFlow up to 2.21 on CPUs with oneDNN writes beyond its buffers in `tf.matmul` of (n, 1, M, K)
by a matrix that is broadcast (tensorflow issue 117700). `tf.vectorized_map` makes such products of
what is right for one element: (1, M, K) by a matrix becomes (n, 1, M, K) by it.

With random numbers that are drawn at once, where TensorFlow would draw those of one element after
those of another. And with gradients of loops: TensorFlow keeps what they need in lists, of which it
cannot make zeros, and whose elements' shape it forgets.
"""

import contextlib
import threading

import tensorflow as tf
from tensorflow.python.ops.parallel_for import pfor

_ACTIVE = threading.local()
_REGISTRY = pfor._pfor_converter_registry
_ORIGINAL = {
    kind: _REGISTRY[kind] for kind in ("BatchMatMulV2", "TensorListElementShape", "ZerosLike")
}


def vectorized_map(function, elements):
    """As tf.vectorized_map; a loop where it cannot be vectorized.

    What has neither way raises, and TensorFlow's hundreds of lines about it are not logged.
    """
    with _active("safe"), _without_log_of_conversion():
        return tf.vectorized_map(function, elements, fallback_to_while_loop=True)


def draws_of_a_batch():
    """Context: elements of `vectorized_map` with one seed draw what a batch of them would draw.

    Each draws (1, ...), and all have the same seed: together they draw (n, ...), and each gets its
    row. For the operations of `DRAWS`.
    """
    return _active("together")


@contextlib.contextmanager
def _without_log_of_conversion():
    def other(record):
        text = record.getMessage()
        return not text.startswith("Got error while pfor") and "created at:\n" not in text

    logger = tf.get_logger()
    logger.addFilter(other)
    try:
        yield
    finally:
        logger.removeFilter(other)


@contextlib.contextmanager
def _active(name):
    before = getattr(_ACTIVE, name, False)
    setattr(_ACTIVE, name, True)
    try:
        yield
    finally:
        setattr(_ACTIVE, name, before)


def _convert(pfor_input):
    (x, x_varies, _), (y, y_varies, _) = pfor_input.input(0), pfor_input.input(1)
    known = x.shape.rank is not None and y.shape.rank is not None
    if not getattr(_ACTIVE, "safe", False) or not known or x_varies == y_varies:
        return _ORIGINAL["BatchMatMulV2"](pfor_input)
    if pfor_input.get_attr("adj_x"):
        x = tf.linalg.adjoint(x)
    if pfor_input.get_attr("adj_y"):
        y = tf.linalg.adjoint(y)
    if x_varies:
        return pfor.wrap(_times_fixed(x, y), True)
    # (x y)' = y' x'
    product = _times_fixed(tf.linalg.matrix_transpose(y), tf.linalg.matrix_transpose(x))
    return pfor.wrap(tf.linalg.matrix_transpose(product), True)


def _times_fixed(varying, fixed):
    """Products of (n, ..., M, K) with (..., K, N), the same for all n: (n, ..., M, N).

    The n matrices are laid below each other, so that the product has no axis of size n.
    """
    missing = fixed.shape.rank + 1 - varying.shape.rank
    for _ in range(missing):
        varying = tf.expand_dims(varying, 1)
    rank = varying.shape.rank
    if all(size == 1 for size in fixed.shape[:-2]):
        last = fixed.shape[-1]
        fixed = tf.reshape(fixed, tf.shape(fixed)[-2:])
        rows = tf.matmul(tf.reshape(varying, [-1, tf.shape(varying)[-1]]), fixed)
        shape = tf.concat([tf.shape(varying)[:-1], tf.shape(fixed)[1:]], 0)
        product = tf.reshape(rows, shape)
        product.set_shape([*varying.shape[:-1], last])
        return product
    # (n, ..., M, K) -> (..., n, M, K) -> (..., n M, K)
    varying = tf.transpose(varying, [*range(1, rank - 2), 0, rank - 2, rank - 1])
    shape = tf.shape(varying)
    below = tf.reshape(varying, tf.concat([shape[:-3], shape[-3:-2] * shape[-2:-1], shape[-1:]], 0))
    product = tf.matmul(below, fixed)
    inner = tf.shape(product)
    product = tf.reshape(product, tf.concat([inner[:-2], shape[-3:-1], inner[-1:]], 0))
    rank = product.shape.rank
    return tf.transpose(product, [rank - 3, *range(rank - 3), rank - 2, rank - 1])


def _convert_zeros_like(pfor_input):
    zeros = pfor_input.stacked_input(0)
    if not getattr(_ACTIVE, "safe", False) or zeros.dtype != tf.variant:
        return _ORIGINAL["ZerosLike"](pfor_input)
    return pfor.wrap(tf.raw_ops.ZerosLike(x=zeros), True)


def _convert_element_shape(pfor_input):
    found = _ORIGINAL["TensorListElementShape"](pfor_input)
    rank = pfor_input.op.outputs[0].shape[0]
    if not getattr(_ACTIVE, "safe", False) or rank is None:
        return found
    # A list that does not know its elements' shape has none to take the first axis from.
    unknown = tf.fill([rank], tf.constant(-1, found.t.dtype))
    shape = tf.cond(tf.equal(tf.size(found.t), rank), lambda: found.t, lambda: unknown)
    return pfor.wrap(tf.ensure_shape(shape, [rank]), False)


def _convert_key(pfor_input):
    if not getattr(_ACTIVE, "together", False):
        raise pfor.ConversionNotImplementedError(pfor_input.op_type)  # as if there were none
    found = tf.raw_ops.StatelessRandomGetKeyCounter(seed=pfor_input.stacked_input(0)[0])
    times = pfor_input.pfor.loop_len_vector
    return [pfor.wrap(tf.tile(t[tf.newaxis], tf.concat([times, [1]], 0)), True) for t in found]


def _convert_draw(pfor_input):
    if not getattr(_ACTIVE, "together", False):
        raise pfor.ConversionNotImplementedError(pfor_input.op_type)  # as if there were none
    shape, *others = (t[0] if stacked else t for t, stacked, _ in pfor_input.inputs)
    shape = tf.concat([pfor_input.pfor.loop_len_vector, tf.cast(shape[1:], tf.int32)], 0)
    dtypes = [t.dtype for t in pfor_input.outputs]
    op = pfor._create_op(
        pfor_input.op_type, [shape, *others], dtypes, attrs=pfor_input.op.node_def.attr
    )
    return pfor.wrap(tf.expand_dims(op.outputs[0], 1), True)


#: Operations that draw for a whole batch as its elements would, given `draws_of_a_batch`.
DRAWS = (
    "StatelessRandomNormalV2",
    "StatelessRandomUniformFullIntV2",
    "StatelessRandomUniformIntV2",
    "StatelessRandomUniformV2",
    "StatelessTruncatedNormalV2",
)
_REGISTRY["BatchMatMulV2"] = _convert
_REGISTRY["TensorListElementShape"] = _convert_element_shape
_REGISTRY["ZerosLike"] = _convert_zeros_like
_REGISTRY["StatelessRandomGetKeyCounter"] = _convert_key
_REGISTRY.update(dict.fromkeys(DRAWS, _convert_draw))
