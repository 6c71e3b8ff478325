"""Where a private step meets the other replicas of a `tf.distribute` strategy.

A step runs once on each replica, in its own replica context, on its own part of the batch. What
belongs to the step as a whole (its charge, its noise, its surviving rows) is made by
`run_once_per_step`; what the parts of the batch contribute is summed by `all_reduce_sum`. With a
single replica these are plain calls.

Most strategies trace the step for each replica and can stop all of them for a call in between.
TPUStrategy traces it once: there every replica makes that call itself, from its own copy of the
same key, counters and gathered examples, and comes to the same result.
"""

import contextlib

import keras
import tensorflow as tf

from tfdp.errors import PrivacyError
from tfdp.runtime.strategies import traces_once
from tfdp.runtime.wide_sums import dense


def run_once_per_step(function, *parts):
    """Calls a function a single time for all replicas, and hands its result to each of them.

    Every replica must come here, outside of loops and branches. With workers on several machines
    the call is made once on each, in step, and where `traces_once` on each replica: it must give
    the same there, as draws from a `NoiseSource` do whose key is shared.

    Args:
        function: takes as many tensors as there are `parts`, and returns a nesting of tensors. The
            variables that it changes must have no aggregation, so that each of these calls changes
            its own copy.
        parts: tensors of this replica's examples, (b, ...) each; the function gets those of all
            replicas, (B, ...), in the order of the replicas.

    Returns:
        What the function returned.
    """
    context = _replica_context()
    if context.num_replicas_in_sync == 1:
        return function(*parts)
    if traces_once(context.strategy):
        return function(*(_gathered(context, part) for part in parts))
    dtypes = [part.dtype for part in parts]

    def merged(strategy, *values):
        whole = [strategy.gather(v, axis=0) for v in values]
        return function(*(tf.cast(w, d) for w, d in zip(whole, dtypes, strict=True)))

    # Not every collective knows bool and the narrow integers.
    wide = [tf.cast(p, tf.int64) if p.dtype.is_integer or p.dtype.is_bool else p for p in parts]
    return context.merge_call(merged, args=wide)


def run_once_on_sums(function, totals):
    """As `run_once_per_step`, for a function of what is the same on all replicas.

    Args:
        function: takes a list of tensors, and returns a nesting of tensors.
        totals: list of tensors, as `all_reduce_sum` gave them.
    """
    context = _replica_context()
    if context.num_replicas_in_sync == 1 or traces_once(context.strategy):
        return function(list(totals))

    def merged(strategy, *values):
        return function([strategy.experimental_local_results(v)[0] for v in values])

    return context.merge_call(merged, args=tuple(totals))


def all_reduce_sum(tensors):
    """Sums tensors over the replicas; each gets the same sums.

    Args:
        tensors: list of tensors, or tf.IndexedSlices, of the same shapes on every replica; may be
            empty.
    """
    context = _replica_context()
    if context.num_replicas_in_sync == 1 or not tensors:
        return list(tensors)
    tensors = [dense(t) for t in tensors]
    return list(context.all_reduce(tf.distribute.ReduceOp.SUM, tensors))


def refuse_shared_examples(tensor):
    """Refuses a batch that was handed to every replica whole, so that each example counts twice.

    Args:
        tensor: a tensor of this replica's examples.

    Raises:
        PrivacyError: if the replicas of this process were given one and the same tensor, or if
            that cannot be seen; where `traces_once`, for a batch of unknown size.
    """
    context = _replica_context()
    if traces_once(context.strategy) and not tensor.shape.is_fully_defined():
        raise PrivacyError(
            f"A step under {type(context.strategy).__name__} is compiled for batches of one size. "
            "Make them with `tfdp.data.poisson_batches`, and remove `steps_per_execution`, with "
            f"which Keras loses the size. Received: examples of shape {tensor.shape}"
        )
    if context.num_replicas_in_sync == 1:
        return
    if traces_once(context.strategy):
        _refuse_one_input(tensor, context.num_replicas_in_sync)
        return

    def merged(strategy, value):
        devices = strategy.extended.worker_devices
        if len(devices) > 1 and not isinstance(value, tf.distribute.DistributedValues):
            raise _shared_examples(len(devices))

    context.merge_call(merged, args=(tensor,))


@contextlib.contextmanager
def already_summed(optimizer):
    """While open, `optimizer.apply` takes gradients that are totals, the same on all replicas.

    Keras' optimizers sum what they are given over the replicas, and have no public way to leave
    that out: a total would be counted once for each replica. This is the one place that says so.

    Args:
        optimizer: a `keras.optimizers.Optimizer`.
    """
    if _replica_context().num_replicas_in_sync == 1:
        yield
        return
    if not callable(getattr(optimizer, _SUMMING, None)):
        raise PrivacyError(
            f"This version of Keras ({keras.__version__}) sums gradients over replicas in a way "
            "that tfdp does not know: noise and gradients would be multiplied by the number of "
            "replicas. Train with one replica, or install a version that tfdp was tested with."
        )
    # In the instance's dictionary, where Keras neither tracks nor saves it.
    vars(optimizer)[_SUMMING] = lambda grads_and_vars: grads_and_vars
    try:
        yield
    finally:
        vars(optimizer).pop(_SUMMING, None)


def of_first_replica(words, strategy):
    """The first worker's words, on every worker; called eagerly by all of them.

    Args:
        words: numpy array of int64.
        strategy: a `tf.distribute.Strategy`.
    """
    if not is_multi_worker(strategy):
        return words
    mine = tf.constant(words)

    @tf.function(autograph=False)
    def broadcast():
        def each():
            context = tf.distribute.get_replica_context()
            first = tf.equal(context.replica_id_in_sync_group, 0)
            return context.all_reduce(
                tf.distribute.ReduceOp.SUM, tf.where(first, mine, tf.zeros_like(mine))
            )

        return strategy.run(each)

    return strategy.experimental_local_results(broadcast())[0].numpy()


_SUMMING = "_all_reduce_sum_gradients"


def is_multi_worker(strategy):
    """Whether the replicas live in several processes; those of TPUs have one between them."""
    if traces_once(strategy):
        return False
    resolver = strategy.cluster_resolver
    return resolver is not None and len(resolver.cluster_spec().as_dict()) > 0


def is_first_worker(strategy):
    """Whether this process is the one that writes for all workers."""
    if not is_multi_worker(strategy):
        return True
    resolver = strategy.cluster_resolver
    if "chief" in resolver.cluster_spec().as_dict():
        return resolver.task_type == "chief"
    return resolver.task_id == 0


def _replica_context():
    context = tf.distribute.get_replica_context()
    if context is None:
        raise RuntimeError(
            "A private step runs on every replica of a strategy: call it by `fit`, or inside "
            "`strategy.run`. Received: a call in cross-replica context"
        )
    return context


def _gathered(context, part):
    """All replicas' parts, in their order, by sums of int32, which every TPU can do.

    TPUStrategy gathers other types by sums, too, in which one NaN would spread to every part.
    """
    is_whole = part.dtype.is_integer or part.dtype.is_bool
    if not is_whole or not part.shape.is_fully_defined():
        raise PrivacyError(
            "Only bool and integers of a static shape can be gathered from replicas that run one "
            f"program. Received: a tensor of dtype {part.dtype.name}, shape {part.shape}"
        )
    word = tf.constant(32, tf.int64)
    wide = tf.cast(part, tf.int64)
    high = tf.cast(tf.bitwise.right_shift(wide, word), tf.int32)
    low = tf.cast(tf.bitwise.bitwise_and(wide, 2**32 - 1) - 2**31, tf.int32)
    high = tf.cast(context.all_gather(high, axis=0), tf.int64)
    low = tf.cast(context.all_gather(low, axis=0), tf.int64) + 2**31
    whole = tf.bitwise.bitwise_or(tf.bitwise.left_shift(high, word), low)
    return tf.cast(whole, part.dtype)


def _refuse_one_input(tensor, replicas):
    """Looks for the places where the one program is given a tensor for each replica."""
    pending = [tensor.op] if tf.is_symbolic_tensor(tensor) else []
    seen, found = set(), False
    while pending:
        op = pending.pop()
        if op in seen:
            continue
        seen.add(op)
        if op.type == "TPUReplicatedInput":
            # Variables have handles, and the number of the replica is a scalar.
            if op.outputs[0].dtype != tf.resource and op.outputs[0].shape.rank:
                found = True
                if len({given.ref() for given in op.inputs}) < replicas:
                    raise _shared_examples(replicas)
        else:
            pending += [given.op for given in op.inputs]
    if not found:
        raise PrivacyError(
            "tfdp cannot tell whether each replica received its own part of the batch. Train "
            "with `fit`, or pass the method `train_step` itself to `strategy.run`, not a "
            "tf.function."
        )


def _shared_examples(replicas):
    return PrivacyError(
        f"Each of {replicas} replicas received the same batch: every example would count that "
        "many times. Train with `fit`, or distribute the dataset with "
        "`strategy.experimental_distribute_dataset`."
    )
