"""Random numbers: of which each example has its own, and which of them are the same numbers."""

from tfdp.clipping.independence.registry import source
from tfdp.clipping.independence.values import Joined, Rows

#: Operations that draw random numbers.
DRAWS = """
StatelessRandomNormal StatelessRandomNormalV2 StatelessRandomUniform StatelessRandomUniformV2
StatelessRandomUniformFullInt StatelessRandomUniformFullIntV2 StatelessRandomUniformInt
StatelessRandomUniformIntV2 StatelessTruncatedNormal StatelessTruncatedNormalV2
StatelessRandomGammaV2 StatelessRandomGammaV3 StatelessRandomPoisson StatelessRandomBinomial
StatelessParameterizedTruncatedNormal
RandomGamma RandomPoisson RandomPoissonV2 RandomStandardNormal RandomUniform RandomUniformInt
StatefulRandomBinomial StatefulStandardNormal StatefulStandardNormalV2 StatefulTruncatedNormal
StatefulUniform StatefulUniformFullInt StatefulUniformInt TruncatedNormal
Multinomial StatelessMultinomial
""".split()
FIXED_SEED = (
    "gives each position of the batch random numbers from a fixed seed (draw them with a "
    "`keras.random.SeedGenerator` of the layer)"
)


@source(*DRAWS)
def _drawn(body, op, rows):
    """Numbers of one law; by a fixed seed they are those of the places, in every step."""
    if has_fixed_seed(body, op):
        return FIXED_SEED
    # Of parameters that are arrays, the last inputs, each place may have its own.
    rank = op.outputs[0].shape.rank
    for given in parameters_of(op):
        if not given.shape.rank:
            continue
        own = rows.axis - (rank - given.shape.rank)
        why = body.unlike(given, Rows(own, rows.inner)) if own >= 0 else ""
        if why:
            return why
    return ""


def has_fixed_seed(body, op):
    """Whether random numbers are keyed, and by nothing that goes on from step to step."""
    keys = [t for t, arg in zip(op.inputs, op.op_def.input_arg, strict=False)
            if arg.name in ("seed", "key")]  # fmt: skip
    return bool(keys) and not any(map(body.is_fresh, keys))


def parameters_of(op):
    """The inputs that are parameters of the law of random numbers."""
    return [t for t, arg in zip(op.inputs, op.op_def.input_arg, strict=False)
            if arg.name in _PARAMETERS]  # fmt: skip


_PARAMETERS = (
    "alpha",
    "logits",
    "rate",
    "lam",
    "counts",
    "probs",
    "means",
    "stddevs",
    "minvals",
    "maxvals",
)


def random_by_parameter(call):
    """Numbers of a law whose parameter, the last input, is by example."""
    ((i, rows),) = call.rows()
    if i != len(call.op.inputs) - 1:
        return call.searched()
    if has_fixed_seed(call.body, call.op):
        return call.joined(FIXED_SEED)
    outer = call.op.outputs[0].shape.rank - call.rank(i)
    return Rows(rows.axis + outer, rows.inner)


#: Of how many operations after each other a key is computed, at most.
_DEEPEST = 20


def number_of(body, tensor, depth=0):
    """An integer: two tensors that are computed in the same few operations have the same one.

    Other types of the same numbers have it, too.
    """
    body, tensor = body.root(tensor)
    op, numbers = tensor.op, body.walk.numbers
    if op.type == "Cast":
        return number_of(body, op.inputs[0], depth)
    key = body.number, tensor.name
    if key not in numbers:
        how = key
        if op.inputs and not op.op_def.is_stateful and depth < _DEEPEST:
            inputs = [number_of(body, t, depth + 1) for t in op.inputs]
            how = (*_attributes(op), tensor.value_index, *inputs)
        elif op.type == "Const":
            how = _attributes(op)
        numbers[key] = numbers.setdefault(how, len(numbers))
    return numbers[key]


def _attributes(op):
    attributes = op.node_def.attr
    return op.type, *((name, attributes[name].SerializeToString()) for name in sorted(attributes))


def note_draw(body, op):
    """Notes by what key an operation draws; operations of one key draw the same numbers."""
    keys = [number_of(body, t) for t, arg in zip(op.inputs, op.op_def.input_arg, strict=False)
            if arg.name in ("seed", "key", "counter")]  # fmt: skip
    attributes = op.node_def.attr
    if not keys and "seed2" in attributes:
        keys = [attributes["seed"].i, attributes["seed2"].i, "seeds"]
        keys = keys if any(keys[:2]) else []  # both 0: the operating system gives a seed
    if keys:
        (drawn,) = op.outputs
        law = _attributes(op), str(drawn.shape), *map(body.key, parameters_of(op))
        body.walk.draws.setdefault(tuple(keys), {})[id(drawn.graph), drawn.name] = drawn, law


def of_one_key(walk, drawn, graph, results):
    """The draws of examples, with those of the same numbers; `Joined` where a law is another.

    Args:
        walk: a `Walk` that is done.
        drawn: of `Alike.draws`.
        graph: the outermost graph.
        results: what is computed of it. What nothing needs is never drawn: a vectorized loop
            leaves the operations of its body behind.
    """
    found, used = dict(drawn), {id(graph): operations_of(results)}
    for noted in walk.draws.values():
        draws = {}
        for name, (tensor, law) in noted.items():
            inner = tensor.graph
            if id(inner) not in used:
                used[id(inner)] = operations_of(inner.outputs)
            if tensor.op.name in used[id(inner)]:
                draws[name] = tensor, law
        own = next((name for name in draws if name in drawn), None)
        for name, (tensor, law) in draws.items() if own else ():
            first, its_law = draws[own]
            if law != its_law:
                what = f"has the key of operation {first.op.name!r}, but another shape or law"
                found[name] = found[own] = Joined(tensor.op, what)
            else:
                found.setdefault(name, drawn[own])
    return found


def operations_of(results, ends=frozenset()):
    """Names of the operations that results are made by, back to tensors whose ids are `ends`."""
    names, pending = set(), list(results)
    while pending:
        tensor = pending.pop()
        if id(tensor) not in ends and tensor.op.name not in names:
            names.add(tensor.op.name)
            pending += tensor.op.inputs
    return names
