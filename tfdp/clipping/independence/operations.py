"""Rules of operations that treat each place of an axis by itself, or sum over an axis."""

import numpy as np

from tfdp.clipping.independence.draws import FIXED_SEED, has_fixed_seed, random_by_parameter
from tfdp.clipping.independence.registry import rule, source, together
from tfdp.clipping.independence.values import PLACES, PUBLIC, Rows

_ELEMENTWISE = """
Abs Acos Acosh AddN AddV2 AsString Asin Asinh Atan Atan2 Atanh BesselI0e Betainc Bitcast
BitwiseAnd BitwiseOr BitwiseXor Bucketize Cast Ceil CheckNumerics CheckNumericsV2 Complex Conj Cos
Cosh Digamma Div DivNoNan Elu EluGrad EncodeBase64 Erf Erfc Erfinv Exp Expm1 Floor FloorDiv
FloorMod Greater GreaterEqual Identity Igamma Imag Invert IsFinite IsInf IsNan LeakyRelu LeftShift
Less LessEqual Lgamma Log Log1p LogicalAnd LogicalNot LogicalOr Mul MulNoNan Ndtri Neg NotEqual
OnesLike Pow PreventGradient RandomGamma Real RealDiv Reciprocal Relu Relu6 Relu6Grad ReluGrad
RightShift Rint Round Rsqrt Select SelectV2 Selu SeluGrad Sigmoid SigmoidGrad Sign Sin Sinh
Softplus Softsign Sqrt SqrtGrad Square SquaredDifference StatelessRandomGammaV3
StaticRegexFullMatch StaticRegexReplace StopGradient StringJoin StringLength StringLower
StringStrip StringToHashBucketFast StringToHashBucketStrong StringToNumber StringUpper Sub Substr
Tan Tanh TanhGrad Xdivy Xlog1py Xlogy ZerosLike
""".split()
_REDUCTIONS = """
All Any EuclideanNorm Max Mean Min Prod Sum ArgMax ArgMin
""".split()
# Operations that join the last axes of their first input, how many, and treat others by place.
_OF_LAST_AXES = {
    1: "FFT IFFT RFFT IRFFT LogSoftmax Softmax TopKV2 MatrixDiagV3 Multinomial "
    "StatelessMultinomial",
    2: "Cholesky FFT2D LogMatrixDeterminant Lu MatrixBandPart MatrixDeterminant MatrixDiagPartV3 "
    "MatrixInverse Qr SelfAdjointEigV2 Svd",
}
# Images, volumes and sequences: one by one along the first axis, whatever else they are given.
_OF_FIRST_AXIS = """
AdjustContrastv2 AdjustHue AdjustSaturation AvgPool AvgPool3D Conv2D Conv3D DepthToSpace
DepthwiseConv2dNative Dilation2D ExtractImagePatches ExtractVolumePatches HSVToRGB LRN MaxPool
MaxPool3D MaxPoolWithArgmax RGBToHSV ResizeArea ResizeBicubic ResizeBilinear
ResizeNearestNeighbor ScaleAndTranslate SpaceToDepth
""".split()


def broadcast(call, inputs=None):
    """The rule of what combines numbers in the same places, axes being counted from the last."""
    inputs = range(len(call.op.inputs)) if inputs is None else inputs
    found = aligned(call, {i: call.rank(i) for i in inputs})
    if not isinstance(found, tuple):
        return found
    from_last, inner = found
    rank = max(call.rank(i) for i in inputs)
    return Rows(rank - from_last, inner)


def aligned(call, ends):
    """Where the examples of several inputs are whose places on an axis meet each other.

    Args:
        ends: dict of the number of an input to the axis after the last that takes part; axes are
            counted back from there.

    Returns:
        (axis counted back from the end, inner), or a `Joined`.
    """
    places = {(ends[i] - v.axis, v.inner) for i, v in call.rows()}
    sizes = {call.shape(i)[v.axis] for i, v in call.rows()} - {None}
    if len(places) > 1 or len(sizes) > 1 or any(p[0] <= 0 for p in places):
        return call.joined("combines examples with other examples")
    ((from_last, inner),) = places
    for i, end in ends.items():
        if call.values[i] is PUBLIC and end >= from_last:
            different = call.unlike(i, Rows(end - from_last, inner))
            if different is not None:
                return different
    return from_last, inner


@rule(*_ELEMENTWISE)
def _elementwise(call):
    if call.op.type in ("Identity", "StopGradient"):  # of a list of tensors, too
        return call.values[0]
    if any(call.rank(i) is None for i in range(len(call.op.inputs))):
        return unknown(call)
    if call.op.type == "Select" and call.rank(0) == 1 and call.rank(1) > 1:
        ends = {0: 1, 1: 1, 2: 1}  # one condition for each place of the first axis
        found = aligned(call, ends)
        return Rows(0, found[1]) if isinstance(found, tuple) else found
    if call.op.type == "Bitcast" and call.rank(0) != call.op.outputs[0].shape.rank:
        return call.values[0] if call.values[0].axis < call.rank(0) - 1 else unknown(call)
    if call.op.type in ("StatelessRandomGammaV3", "RandomGamma"):
        return random_by_parameter(call)
    return broadcast(call)


def unknown(call):
    """What an operation gives whose shapes are not known well enough."""
    return call.searched()


def joined_of(call):
    """What holds of several examples: what joined them before, or this operation."""
    held = [v for v in call.values if v is not PUBLIC]
    value = together(call, held)
    return call.joined("keeps no place for each example") if isinstance(value, Rows) else value


@rule(*_REDUCTIONS)
def _reduction(call):
    axes = call.constant(1)
    if axes is None or not isinstance(call.values[0], Rows):
        return unknown(call)
    rank, rows = call.rank(0), call.values[0]
    axes = {int(a) % rank for a in np.ravel(axes)}
    if rows.axis in axes:
        return call.joined("joins the examples of the batch")
    is_index = call.op.type in ("ArgMax", "ArgMin")
    if not is_index and call.attribute("keep_dims"):
        return rows
    return Rows(rows.axis - sum(a < rows.axis for a in axes), rows.inner)


def _register_last_axes(count, types):
    @rule(*types)
    def of_last_axes(call):
        found = call.rows()
        if found != [(0, call.values[0])]:
            return unknown(call)
        if call.values[0].axis >= call.rank(0) - count:
            return call.joined("joins the examples of the batch")
        if call.op.type == "StatelessMultinomial" and has_fixed_seed(call.body, call.op):
            return call.joined(FIXED_SEED)
        if call.op.type == "MatrixDiagV3":  # of several diagonals, the axis before is theirs
            diagonals = call.constant(1)
            if diagonals is None or np.ptp(diagonals):
                return unknown(call)
        return call.values[0]


for _count, _types in _OF_LAST_AXES.items():
    _register_last_axes(_count, _types.split())


@rule(*_OF_FIRST_AXIS)
def _first_axis(call):
    if [i for i, _ in call.rows()] != [0]:
        return unknown(call)
    rows, rank = call.values[0], call.rank(0)
    if call.op.type in ("RGBToHSV", "HSVToRGB", "AdjustHue", "AdjustSaturation"):
        is_channel = rows.axis == rank - 1
        return call.joined("joins the examples of the batch") if is_channel else rows
    if rank is None or rank < 4:  # one image, to some of these
        return unknown(call)
    if call.op.type == "MaxPoolWithArgmax" and call.attribute("include_batch_in_index"):
        return call.joined(PLACES)
    return rows if rows.axis == 0 else call.joined("joins the examples of the batch")


@rule("Conv2DBackpropInput", "Conv3DBackpropInputV2", "DepthwiseConv2dNativeBackpropInput")
def _transposed_convolution(call):
    if call.rows() != [(2, call.values[2])]:
        return unknown(call)
    rows = call.values[2]
    return rows if rows.axis == 0 else call.joined("joins the examples of the batch")


@rule("ImageProjectiveTransformV3")
def _transformed_images(call):
    """Images and their transformations, one for each image or one for all."""
    if any(v.axis for _, v in call.rows()) or any(i > 1 for i, _ in call.rows()):
        return unknown(call)
    found = aligned(call, {0: 1, 1: 1})
    return Rows(0, found[1]) if isinstance(found, tuple) else found


@rule("MatrixSolve", "MatrixTriangularSolve")
def _solved(call):
    """Systems of equations, one for each place of the axes before the last two."""
    found = aligned(call, {0: call.rank(0) - 2, 1: call.rank(1) - 2})
    if not isinstance(found, tuple):
        return found
    return Rows(call.op.outputs[0].shape.rank - 2 - found[0], found[1])


@rule("FusedBatchNormV3")
def _batch_norm(call):
    rows = call.values[0]
    if call.rows() != [(0, rows)] or rows.axis:
        return unknown(call)
    if call.attribute("is_training"):
        return call.joined("normalises by statistics of the batch")
    return [rows, *[PUBLIC] * (len(call.op.outputs) - 1)]


@rule("BiasAdd")
def _bias(call):
    if call.values[1] is not PUBLIC:
        return unknown(call)
    channel = 1 if call.attribute("data_format") == b"NCHW" else call.rank(0) - 1
    rows = call.values[0]
    different = call.unlike(1, Rows(0, rows.inner)) if rows.axis == channel else None
    return different or rows


@rule("BiasAddGrad", "L2Loss")
def _sum_of_all(call):
    return call.joined("joins the examples of the batch")


@rule("SparseSoftmaxCrossEntropyWithLogits", "InTopKV2")
def _sparse_crossentropy(call):
    found = aligned(call, {0: 1, 1: 1})
    return Rows(0, found[1]) if isinstance(found, tuple) else found


@rule("SoftmaxCrossEntropyWithLogits")
def _crossentropy(call):
    found = aligned(call, {0: 1, 1: 1})
    return Rows(0, found[1]) if isinstance(found, tuple) else found


@rule("Maximum", "Minimum", thorough=True)
def _clamped(call):
    """As elementwise; a number between two bounds that are the same is no longer of examples."""
    other = {"Maximum": "Minimum", "Minimum": "Maximum"}[call.op.type]
    for i in (0, 1):
        bound, inside = call.constant(i), call.body.root(call.op.inputs[1 - i])
        if bound is None or inside[1].op.type != other or bound.dtype.kind not in "iu":
            continue
        for limit in map(inside[0].constant, inside[1].op.inputs):
            if limit is None:
                continue
            if np.all(limit <= bound if other == "Minimum" else limit >= bound):
                return PUBLIC
    return broadcast(call) if call.rows() and not call.mixed() else joined_of(call)


@rule("Equal", thorough=True)
def _equal(call):
    """As elementwise; what has no NaN is equal to itself (`tf.recompute_grad` asks that)."""
    first, second = call.op.inputs
    if first is second and not (first.dtype.is_floating or first.dtype.is_complex):
        return PUBLIC
    return call.mixed() or _elementwise(call)


@rule("RandomShuffle", "StatelessShuffle")
def _shuffled(call):
    return call.joined("shuffles the examples")


@rule("LookupTableFindV2")
def _table(call):
    return call.values[1] if call.rows() == [(1, call.values[1])] else unknown(call)


@rule("DenseBincount")
def _counts(call):
    """Rows of counts, of a matrix; weights, if any, belong to its places."""
    if call.rank(0) != 2:
        return call.joined("counts over the examples of the batch")
    inputs = {0: 1}
    if call.shape(2).num_elements() != 0:
        inputs[2] = 1
    if any(i not in inputs for i, _ in call.rows()):
        return unknown(call)
    found = aligned(call, inputs)
    return Rows(0, found[1]) if isinstance(found, tuple) else found


@source("Fill", "ZerosLike", "OnesLike", "TensorListReserve", "EmptyTensorList", "Empty")
def _alike(body, op, rows):
    return ""


@source("BroadcastTo", "Tile")
def _repeated(body, op, rows):
    """Copies after each other: of one place, of all places of an example, or of all examples."""
    given, shape = op.inputs[0], op.outputs[0].shape
    if given.shape.rank is None or shape.rank is None:
        return "has an unknown shape"
    axis = rows.axis - (shape.rank - given.shape.rank)
    size = given.shape[axis] if axis >= 0 else 1
    if not size:
        return "has an unknown shape"
    return "" if rows.inner % size == 0 else body.unlike(given, Rows(axis, rows.inner))
