"""The rule of each operation against brute force: what it calls one example's is that example's."""

import inspect

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops
from mixing import APART, MIXING, WALKED, Function, Maker
from mixing_in_hiding import HIDDEN, INNOCENT

from tfdp.clipping.independence import search
from tfdp.clipping.independence.registry import RULES
from tfdp.clipping.independence.values import PUBLIC, Joined, Rows
from tfdp.clipping.independence.walk import Walk

B = 6
TRIES = 8


class RecordingWalk(Walk):
    """Keeps every operation that examples reach, with what its outputs are said to hold."""

    def __init__(self):
        super().__init__(B)
        self.calls = []

    def _outputs(self, call):
        found = super()._outputs(call)
        self.calls.append((call, found))
        return found


def walked(function, *specs):
    """The calls of a function of (B, ...) tensors."""
    specs = [tf.TensorSpec((B, *shape), dtype) for shape, dtype in specs]
    traced = tf.function(function, autograph=False).get_concrete_function(*specs)
    walk = RecordingWalk()
    walk.outermost(traced.graph, {t.name: Rows(0) for t in traced.inputs[: len(specs)]})
    return walk.calls


def contradiction(call, found):
    """What random values say against the values found for an operation's outputs; None if nothing.

    Returns:
        Whether it could be run, and the contradiction.
    """
    if not search.can_run(call.op) or any(not isinstance(v, (Rows, type(PUBLIC)))
                                          for v in call.values):  # fmt: skip
        return False, None
    constants = [call.constant(i) if v is PUBLIC else None for i, v in enumerate(call.values)]
    generator = np.random.default_rng()
    inputs = search.Inputs(call.op.inputs, call.values, constants, B)
    drawn = inputs.draw

    def draw(generator, largest):
        """What is public and alike along an axis is so here, too."""
        arrays = drawn(generator, largest)
        for i, value in enumerate(call.values):
            if value is PUBLIC and constants[i] is None:
                for axis in range(arrays[i].ndim):
                    if not call.body.unlike(call.op.inputs[i], Rows(axis)):
                        shape = arrays[i].shape
                        arrays[i] = np.broadcast_to(arrays[i].take([0], axis), shape)
        return arrays

    inputs.draw, ran = draw, False
    for attempt in search.tries(search.Operation(call.op), inputs, generator, TRIES):
        ran = True
        for k, value in enumerate(found):
            if isinstance(value, Rows) and not attempt.agrees(k, value):
                return True, f"output {k} is not {value}"
            if value is PUBLIC and not attempt.moved:
                if not search.same(attempt.before[k], attempt.after[k]):
                    return True, f"output {k} is not public"
    return ran, None


def check(calls):
    """Types of the operations that were run; fails for a rule that is wrong."""
    types, seen = set(), set()
    for call, found in calls:
        key = str((call.op.type, call.values, [t.shape for t in call.op.inputs], found))
        if key in seen or not any(isinstance(v, Rows) for v in found):
            continue
        seen.add(key)
        ran, wrong = contradiction(call, found)
        assert wrong is None, f"{call.op.type} {call.values}: {wrong}"
        if ran:
            types.add(call.op.type)
    return types


F, ROW, MATRIX, IMAGE = "float32", ((4,), "float32"), ((3, 3), "float32"), ((6, 6, 2), "float32")
IDS, WORDS = ((4,), "int32"), ((3,), "string")


SEGMENTS = (tf.math.unsorted_segment_sum, tf.math.unsorted_segment_max,
            tf.math.unsorted_segment_min, tf.math.unsorted_segment_prod)  # fmt: skip


def unary(*names):
    found = []
    for name in names:
        raw = getattr(tf.raw_ops, name)
        argument = next(iter(inspect.signature(raw).parameters))
        found.append((lambda x, f=raw, argument=argument: f(**{argument: x}), ROW))
    return found


def binary(*names):
    pairs = []
    for name in names:
        raw = getattr(tf.raw_ops, name)
        pairs.append((lambda x, f=raw: f(x=x, y=tf.reverse(x, [1])), ROW))
        pairs.append((lambda x, f=raw: f(x=x[:, None], y=tf.reshape(x, [-1, 4, 1])), ROW))
        pairs.append((lambda x, f=raw: f(x=x, y=tf.ones([4])), ROW))
    return pairs


BINARY = binary(
    "AddV2", "Atan2", "Div", "DivNoNan", "Equal", "FloorDiv", "FloorMod", "Greater",
    "GreaterEqual", "Less", "LessEqual", "Maximum", "Minimum", "Mul", "MulNoNan", "NotEqual",
    "Pow", "RealDiv", "SquaredDifference", "Sub", "Xdivy", "Xlog1py", "Xlogy",
)  # fmt: skip
# All three pairs of shapes of the first operation, one of each other: one rule is that of all.
BINARY_OF_ALL_DAYS = BINARY[:3] + [BINARY[3 * i + i % 3] for i in range(1, len(BINARY) // 3)]

EXPRESSIONS = [
    *unary("Abs", "Acos", "Acosh", "Asinh", "Atanh", "Cosh", "PreventGradient", "Asin", "Atan",
            "BesselI0e", "Ceil", "Cos", "Digamma", "Erf", "Erfinv",
           "Exp", "Expm1", "Floor", "IsFinite", "IsInf", "IsNan", "Lgamma", "Log", "Log1p", "Ndtri",
           "Neg", "Reciprocal", "Rint", "Round", "Rsqrt", "Sigmoid", "Sign", "Sin", "Sinh",
           "Softplus", "Softsign", "Sqrt", "Square", "Tan", "Tanh", "ZerosLike", "OnesLike"),
    *BINARY_OF_ALL_DAYS,
    *[(f, ROW) for f in (
        tf.nn.relu, tf.nn.relu6, tf.nn.elu, tf.nn.selu, tf.nn.leaky_relu, tf.nn.softmax,
        tf.nn.log_softmax, tf.nn.silu, tf.nn.gelu, tf.stop_gradient, tf.identity,
        lambda x: tf.cast(x, "int32"), lambda x: tf.clip_by_value(x, -1.0, 1.0),
        lambda x: tf.where(x > 0, x, 0.0), lambda x: tf.where(x > 0, x[:, :1], 1.0),
        lambda x: tf.compat.v1.where(x[:, 0] > 0, x, 2 * x),
        lambda x: tf.logical_and(x > 0, tf.logical_not(x > 1)),
        lambda x: tf.logical_or(x > 0, x < 1),
        lambda x: tf.complex(x, x), lambda x: tf.math.conj(tf.complex(x, x)),
        lambda x: tf.math.real(tf.complex(x, x)), lambda x: tf.math.imag(tf.complex(x, x)),
        lambda x: tf.raw_ops.Bucketize(input=x, boundaries=[0.0, 1.0]), tf.strings.as_string,
        lambda x: tf.bitcast(x, "int32"), lambda x: tf.bitcast(x, "uint8"),
        lambda x: tf.math.igamma(tf.abs(x), 1.0), lambda x: tf.math.betainc(0.5, 0.5, tf.abs(x)),
        lambda x: tf.gradients([f(x) for f in (
            tf.tanh, tf.sigmoid, tf.nn.relu, tf.nn.relu6, tf.nn.elu, tf.nn.selu, tf.nn.softplus,
            tf.sqrt)], x),
        lambda x: tf.gradients(tf.nn.conv3d_transpose(tf.reshape(x, [-1, 1, 1, 1, 4]), tf.ones(
            [1, 1, 1, 2, 4]), [B, 1, 1, 1, 2], 1), x),
        lambda x: tf.reduce_sum(x, 1), lambda x: tf.reduce_mean(x, 1, keepdims=True),
        lambda x: tf.reduce_max(x, -1), lambda x: tf.reduce_min(x, 1),
        lambda x: tf.reduce_prod(x, 1),
        lambda x: tf.reduce_all(x > 0, 1), lambda x: tf.reduce_any(x > 0, 1),
        lambda x: tf.reduce_sum(x[None], [0, 2]), lambda x: tf.math.reduce_euclidean_norm(x, 1),
        lambda x: tf.argmax(x, 1), lambda x: tf.argmin(x[None], 2), lambda x: tf.math.top_k(x, 2),
        lambda x: tf.reshape(x, [-1, 2, 2]), lambda x: tf.reshape(tf.reshape(x, [-1]), [-1, 4]),
        lambda x: tf.reshape(tf.tile(x[:, None], [1, 3, 1]), [-1, 4]) * 2.0,
        lambda x: tf.reshape(tf.transpose(tf.reshape(x, [-1, 2, 2]), [1, 0, 2]), [-1, 2]) + 1.0,
        lambda x: tf.squeeze(x[:, None], 1), lambda x: tf.expand_dims(x, 0), tf.transpose,
        lambda x: tf.broadcast_to(x[None], [2, B, 4]), lambda x: tf.tile(x, [3, 1]) + 1.0,
        lambda x: tf.pad(x, [[0, 0], [1, 2]]), lambda x: tf.pad(x, [[0, 0], [1, 1]], "REFLECT"),
        lambda x: tf.pad(x, [[0, 0], [1, 0]], constant_values=2.0), lambda x: tf.reverse(x, [1]),
        lambda x: tf.roll(x, 1, 1), lambda x: tf.cumsum(x, 1), lambda x: tf.math.cumprod(x, 1),
        lambda x: tf.math.cumulative_logsumexp(x, 1), lambda x: tf.concat([x, 2 * x], 1),
        lambda x: tf.concat([x, tf.ones([B, 1])], 1), lambda x: tf.stack([x, x], 1),
        lambda x: tf.stack([x, x], 0), lambda x: tf.unstack(x, axis=1), lambda x: tf.split(x, 2, 1),
        lambda x: tf.split(x, [1, 3], 1), lambda x: tf.slice(x, [0, 1], [-1, 2]),
        lambda x: x[:, 1], lambda x: x[:, ::2], lambda x: x[..., :2, None],
        lambda x: x[None, :, 1:],
        lambda x: tf.stack([tf.reduce_sum(row) for row in tf.unstack(x)]),
        lambda x: tf.concat([x[i : i + 1] * 2 for i in range(B)], 0),
        lambda x: tf.gather(x, [2, 0], axis=1), lambda x: tf.gather(tf.ones([9, 2]),
                                                                    tf.argmax(x, 1)),
        lambda x: tf.gather(x, tf.argsort(x, axis=1), axis=1, batch_dims=1),
        lambda x: tf.gather_nd(tf.transpose(x), [[1], [0]]),
        lambda x: tf.gather_nd(tf.ones([9, 2]), tf.argmax(x, 1)[:, None]),
        lambda x: tf.gather_nd(x, tf.stack([tf.range(B), tf.argmax(x, 1, "int32")], 1)),
        lambda x: tf.tensor_scatter_nd_add(
            x, tf.stack([tf.range(B), tf.argmax(x, 1, "int32")], 1), x[:, 0]),
        lambda x: tf.tensor_scatter_nd_update(tf.transpose(x), [[1]], 2 * tf.transpose(x)[:1]),
        lambda x: tf.scatter_nd(tf.stack([tf.range(B), tf.argmax(x, 1, "int32")], 1), x[:, 0],
                                [B, 4]),
        lambda x: x @ tf.ones([4, 2]), lambda x: tf.matmul(x, tf.ones([2, 4]), transpose_b=True),
        lambda x: tf.matmul(tf.ones([2, 4]), x, transpose_b=True),
        lambda x: tf.matmul(x, tf.ones([B, 2]) * x[0, 0] * 0, transpose_a=True),
        lambda x: tf.einsum("bi,ij->bj", x, tf.ones([4, 3])),
        lambda x: tf.einsum("bi,bj->bij", x, x),
        lambda x: tf.einsum("...i,...i->...", x, x), lambda x: tf.one_hot(tf.argmax(x, 1), 4),
        lambda x: tf.one_hot(tf.argmax(x, 1), 4, axis=0), lambda x: tf.signal.rfft(x),
        lambda x: tf.signal.irfft(tf.signal.rfft(x)),
        lambda x: tf.signal.fft(tf.complex(x, x)), lambda x: tf.signal.ifft(tf.complex(x, x)),
        lambda x: tf.linalg.diag(x), lambda x: tf.ensure_shape(x, [None, 4]),
        lambda x: tf.nn.sparse_softmax_cross_entropy_with_logits(tf.argmax(x, 1), x),
        lambda x: tf.nn.softmax_cross_entropy_with_logits(tf.nn.softmax(x), x),
        lambda x: tf.nn.sigmoid_cross_entropy_with_logits(tf.sigmoid(x), x),
        lambda x: tf.nn.bias_add(x, tf.ones([4])), lambda x: tf.debugging.check_numerics(x, ""),
        lambda x: tf.math.bincount(tf.cast(x, "int32"), minlength=4, maxlength=4, axis=-1),
        lambda x: tf.math.in_top_k(tf.argmax(x, 1), x, 2),
    )],
    *[(f, MATRIX) for f in (
        lambda a: a @ a, lambda a: tf.matmul(a, a, transpose_a=True),
        lambda a: tf.matmul(tf.ones([2, 3]), a), lambda a: a @ tf.ones([3, 2]),
        lambda a: tf.matmul(a, tf.ones([B, 3, 1])), lambda a: tf.linalg.band_part(a, 1, 0),
        tf.linalg.det, tf.linalg.inv, tf.linalg.qr, tf.linalg.svd, tf.linalg.diag_part,
        tf.linalg.slogdet, tf.linalg.lu,
        lambda a: tf.linalg.eigh(a + tf.linalg.matrix_transpose(a)),
        lambda a: tf.linalg.solve(a, a), lambda a: tf.linalg.triangular_solve(a, a),
        lambda a: tf.signal.fft2d(tf.complex(a, a)), lambda a: tf.transpose(a, [1, 0, 2]) * 2,
        lambda a: tf.nn.softmax(tf.transpose(a, [1, 0, 2])),
        lambda a: tf.gather(a, [0, 2], axis=2), lambda a: tf.gather_nd(a, [[0]], batch_dims=0) * 1,
        lambda a: tf.raw_ops.BatchMatMulV3(x=a, y=a, Tout="float32"),
    )],
    *[(f, IMAGE) for f in (
        lambda i: tf.nn.conv2d(i, tf.ones([3, 3, 2, 2]), 1, "SAME"),
        lambda i: tf.nn.max_pool2d(i, 2, 2, "SAME"),
        lambda i: tf.nn.conv2d_transpose(i, tf.ones([3, 3, 2, 2]), [B, 12, 12, 2], 2),
        lambda i: tf.nn.depthwise_conv2d(i, tf.ones([3, 3, 2, 1]), [1, 1, 1, 1], "SAME"),
        lambda i: tf.nn.conv2d(i, tf.ones([3, 3, 2, 2]), 1, "SAME", dilations=2),
        lambda i: tf.nn.avg_pool2d(i, 2, 2, "VALID"),
        lambda i: tf.nn.conv3d(i[..., None], tf.ones([2, 2, 2, 1, 1]), [1] * 5, "SAME"),
        lambda i: tf.nn.max_pool3d(i[..., None], 2, 2, "SAME"),
        lambda i: tf.nn.avg_pool3d(i[..., None], 2, 2, "SAME"),
        lambda i: tf.image.resize(i, [3, 3], "area"), lambda i: tf.image.resize(i, [3, 3]),
        lambda i: tf.image.resize(i, [3, 3], "bicubic"),
        lambda i: tf.image.resize(i, [3, 3], "nearest"),
        lambda i: tf.image.resize(i, [3, 3], "lanczos3"),
        lambda i: tf.nn.depth_to_space(tf.concat([i, i], -1), 2),
        lambda i: tf.nn.space_to_depth(i, 2), lambda i: tf.nn.lrn(i),
        lambda i: tf.image.extract_patches(i, [1, 2, 2, 1], [1, 1, 1, 1], [1, 1, 1, 1], "SAME"),
        lambda i: tf.image.rgb_to_hsv(tf.concat([i, i[..., :1]], -1)),
        lambda i: tf.image.hsv_to_rgb(tf.concat([i, i[..., :1]], -1)),
        lambda i: tf.image.adjust_saturation(tf.concat([i, i[..., :1]], -1), 0.5),
        lambda i: tf.gradients(tf.nn.depthwise_conv2d(i, tf.ones([3, 3, 2, 1]), [1] * 4,
            "SAME") ** 2, i),
        lambda i: tf.image.adjust_contrast(i, 2.0),
        lambda i: tf.image.adjust_hue(tf.concat([i, i[..., :1]], -1), 0.1),
        lambda i: tf.nn.dilation2d(i, tf.ones([2, 2, 2]), [1] * 4, "SAME", "NHWC", [1] * 4),
        lambda i: tf.compat.v1.nn.fused_batch_norm(i, tf.ones(2), tf.zeros(2), tf.zeros(2),
            tf.ones(2), is_training=False)[0],
        lambda i: tf.space_to_batch(i, [2, 2], [[0, 0], [0, 0]]) + 1.0,
        lambda i: tf.batch_to_space(tf.space_to_batch(i, [2, 2], [[0, 0], [0, 0]]), [2, 2], [[0,
            0], [0, 0]]),
        lambda i: tf.raw_ops.ImageProjectiveTransformV3(images=i, transforms=tf.ones([1, 8]),
            output_shape=[6, 6], fill_value=0.0, interpolation="NEAREST"),
        lambda i: tf.raw_ops.MaxPoolWithArgmax(input=i, ksize=[1, 2, 2, 1], strides=[1, 2, 2, 1],
            padding="SAME"),
        lambda i: tf.raw_ops.ExtractVolumePatches(input=i[..., None], ksizes=[1, 2, 2, 2, 1],
            strides=[1] * 5, padding="SAME"),
    )],
    *[(f, IDS) for f in (
        lambda i: tf.bitwise.bitwise_and(i, i[:, ::-1]), lambda i: tf.bitwise.bitwise_or(i, 3),
        lambda i: tf.bitwise.bitwise_xor(i[:, :1], i), lambda i: tf.bitwise.invert(i),
        lambda i: tf.bitwise.left_shift(i, i % 3), lambda i: tf.bitwise.right_shift(i, 1),
    )],
    *[(lambda x, f=f: f(tf.reshape(x, [-1, 2]), np.arange(2 * B) // 2, B), ROW) for f in SEGMENTS],
    *[(lambda x, f=f: f(tf.transpose(x), [0, 0, 1, 2], 3), ROW) for f in SEGMENTS],
    *[(f, WORDS) for f in (
        tf.strings.lower, tf.strings.upper, tf.strings.strip, tf.strings.length,
        lambda s: tf.strings.regex_replace(s, "a", "b"),
        lambda s: tf.strings.regex_full_match(s, ".*a"),
        lambda s: tf.strings.substr(s, 0, 1), lambda s: tf.strings.to_hash_bucket_fast(s, 9),
        lambda s: tf.strings.to_hash_bucket_strong(s, 9, [1, 2]), lambda s: tf.strings.join([s, s]),
        lambda s: tf.strings.to_number(tf.strings.as_string(tf.strings.length(s))),
        lambda s: tf.io.encode_base64(s), lambda s: tf.equal(s, "a"),
    )],
]  # fmt: skip

#: Rules of operations that cannot be run by themselves: lists, resources, calls, random numbers,
#: sizes that depend on values; that take indices by place, which are compared as a whole below;
#: StringToNumber, which refuses most texts; and Cholesky, which leaves what it likes where a matrix
#: is not positive.
NOT_RUN = set("""
    TensorListFromTensor TensorListStack TensorListLength TensorListElementShape TensorListResize
    TensorListGetItem TensorListPopBack TensorListSetItem TensorListPushBack IdentityN
    LookupTableFindV2 ResourceGather RandomGamma StatelessRandomGammaV3 RandomShuffle
    StatelessShuffle Multinomial StatelessMultinomial BiasAddGrad L2Loss CheckNumerics
    CheckNumericsV2 DenseBincount FusedBatchNormV3 ScatterNd TensorScatterAdd Cholesky
    ScatterNdNonAliasingAdd
    OnesLike ZerosLike StringToNumber
""".split())  # fmt: skip


@pytest.fixture(scope="module")
def run_types():
    """Types of the operations in all expressions, each compared with brute force."""
    calls = []
    for function, spec in EXPRESSIONS:
        calls += walked(lambda x, f=function: tf.nest.flatten(f(x)), spec)
    return check(calls)


def test_the_rules_of_operations_agree_with_brute_force(run_types):
    assert len(run_types) > 150


@pytest.mark.evidence
def test_the_rules_of_binary_operations_agree_with_brute_force_for_all_shapes():
    calls = [call for function, spec in BINARY for call in walked(function, spec)]
    assert len(check(calls)) > 20


def test_every_rule_is_compared_or_said_not_to_be(run_types):
    assert not set(RULES) - run_types - NOT_RUN


@pytest.mark.thorough
def test_layers_that_are_proved_keep_their_examples_apart():
    drawn = {"dropout", "noise", "own noise", "drawn branch"}
    for name, made in APART.items():
        layer = made.make() if isinstance(made, Maker) else Function(made)
        if name not in drawn:
            calls = walked(layer, ROW)
            assert calls and search.keeps_apart(lambda v, f=layer: [f(*v)], [tf.zeros((B, 4))], B)
            check(calls)


@pytest.mark.thorough_after(1)
@pytest.mark.parametrize("name", ["mean", "roll", "sort", "reverse", "parity", "places", "pairs"])
def test_layers_that_mix_are_found_by_values_too(name):
    layer = Function(MIXING[name][0])
    assert not search.keeps_apart(lambda values: [layer(*values)], [tf.zeros((B, 4))], B)


def losses_of(function, shape):
    """What the (B,) losses of a function hold, by the proof."""
    size = 8

    def losses(x):
        outputs = function(x)
        return tf.reduce_sum(outputs * tf.ones(shape), range(1, outputs.shape.rank))

    spec = tf.TensorSpec((size, *shape), tf.float32)
    traced = tf.function(losses, autograph=False).get_concrete_function(spec)
    walk = Walk(size)
    return walk.outermost(traced.graph, {traced.inputs[0].name: Rows(0)}).value(traced.outputs[0])


@pytest.mark.parametrize("name", WALKED)
def test_what_mixes_is_joined_by_its_operation(name):
    function, what = MIXING[name]
    found = losses_of(function, (4,))
    assert isinstance(found, Joined)
    assert what in f"{found.op.type} {found.what}"


@pytest.mark.parametrize("name", HIDDEN)
def test_what_mixes_in_hiding_is_joined(name):
    function, shape = HIDDEN[name] if isinstance(HIDDEN[name], tuple) else (HIDDEN[name], (4,))
    assert isinstance(losses_of(function, shape), Joined)


@pytest.mark.parametrize("name", INNOCENT)
def test_what_looks_like_it_and_does_not_mix_is_by_example(name):
    assert losses_of(INNOCENT[name], (6, 4)) == Rows(0)


def test_a_wrong_rule_is_found(monkeypatch):
    for kind, expression, wrong in (
        ("Mean", lambda x: tf.reduce_mean(x[None], 1), Rows(0)),
        ("ReverseV2", lambda x: tf.reverse(x, [0]), Rows(0)),
        ("Max", lambda x: tf.reduce_max(x), PUBLIC),
        ("Transpose", lambda x: tf.transpose(tf.reshape(x, [B, 2, 2]), [1, 0, 2]), Rows(2)),
    ):
        monkeypatch.setitem(RULES, kind, lambda call, wrong=wrong: wrong)
        calls = [c for c in walked(expression, ROW) if c[0].op.type == kind]
        ran, said = contradiction(*calls[0])
        assert ran and said
        monkeypatch.undo()


def test_keras_operations_for_a_batch_agree():
    """What is made of several operations, from the first to the last axis."""
    for expression in (
        lambda x: ops.take_along_axis(x, ops.argsort(x, axis=-1), axis=-1),
        lambda x: ops.map(lambda row: row * ops.sum(row), x),
        lambda x: keras.activations.sparsemax(x),
        lambda x: ops.logsumexp(x, axis=-1, keepdims=True) + x,
        lambda x: ops.quantile(x, 0.5, axis=-1, keepdims=True) + x,
    ):
        calls = walked(lambda x, f=expression: tf.nest.flatten(f(x)), ROW)
        last = calls[-1][1]
        assert not any(isinstance(v, Joined) for v in last)
        check(calls)
