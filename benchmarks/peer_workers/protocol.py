"""How benchmarks/peers.py speaks with a worker: one JSON object per line, over stdin and stdout.

A worker brings a class `Trainer(architecture, method, optimizer, noise_multiplier, clip_norm,
batch_size)` with

- `feed(inputs, labels)`: NumPy arrays that the following steps train on,
- `step()`: one training step, finished when it returns,
- `get()` and `set(arrays)`: the trained weights, always in the same order.

Every library's methods include "plain": the same model, trained without privacy.
"""

import json
import os
import re
import resource
import sys
import time
import traceback

import numpy as np
import sizes

CHECKED_EXAMPLES = 4


def _peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _message(error):
    """Without the stacks that TensorFlow puts into messages."""
    text = re.sub(r'File "[^"]*", line \d+(, in \S+)?', "", str(error))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if "Detected at node" in text:
        lines = [v for v in lines if any(w in v for w in ("must", "upport", "ompil", "OOM"))]
    return " ".join(lines)[:1000] or text[-300:]


def _prepared(make, name, method, batch_size=None):
    inputs, labels = sizes.batch(name, batch_size)
    trainer = make(name, method, "adam", sizes.NOISE_MULTIPLIER, sizes.CLIP_NORM, len(labels))
    trainer.feed(inputs, labels)
    return trainer


def _gradient(before, after):
    rate = sizes.RATES["sgd"]
    return [(a - b.astype(np.float64)) / rate for a, b in zip(before, after, strict=True)]


def check(make, name, method):
    """How far one step of `method` is from clipping each example's gradient by itself.

    Without noise, by gradient descent; gradients of single examples come from steps of
    "plain" on one example each. The clip norm is between them: some are clipped and some are not.
    """
    inputs, labels = sizes.batch(name, CHECKED_EXAMPLES, seed=1)
    plain = make(name, "plain", "sgd", 0.0, 1.0, 1)
    plain.feed(tuple(x[:1] for x in inputs), labels[:1])
    start = plain.get()
    gradients = []
    for i in range(CHECKED_EXAMPLES):
        plain.set(start)
        plain.feed(tuple(x[i : i + 1] for x in inputs), labels[i : i + 1])
        plain.step()
        gradients.append(_gradient(start, plain.get()))
    norms = [np.sqrt(sum(np.sum(np.square(v)) for v in g)) for g in gradients]
    clip_norm = float(np.mean(sorted(norms)[1:3]))
    factors = [min(1.0, clip_norm / norm) for norm in norms]
    private = make(name, method, "sgd", 0.0, clip_norm, CHECKED_EXAMPLES)
    private.feed(inputs, labels)
    private.set(start)
    private.step()
    changes = _gradient(start, private.get())
    error = expected = change = 0.0
    for k, got in enumerate(changes):
        want = sum(f * g[k] for f, g in zip(factors, gradients, strict=True)) / CHECKED_EXAMPLES
        error += np.sum(np.square(got - want))
        expected += np.sum(np.square(want))
        change += np.sum(np.square(got))
    return {
        "relative_error": float(np.sqrt(error / expected)),
        "norm_over_clip_norm": float(np.sqrt(change) / clip_norm),
        "clipped": int(sum(f < 1 for f in factors)),
        "parameters": int(sum(v.size for v in start)),
    }


def serve(make, versions):
    """Answers requests until stdin ends.

    Args:
        make: the worker's `Trainer`.
        versions: dict of names and versions of what is timed.
    """
    resource.setrlimit(resource.RLIMIT_DATA, (sizes.MEMORY, sizes.MEMORY))
    answers, sys.stdout = os.fdopen(os.dup(1), "w"), sys.stderr
    os.dup2(2, 1)  # what libraries print is no answer
    trainers = {}

    def prepare(architecture, method, batch_size=None):
        start = time.perf_counter()
        trainer = _prepared(make, architecture, method, batch_size)
        trainer.step()
        trainers[architecture, method] = trainer
        answer = {"first_seconds": time.perf_counter() - start}
        note = getattr(trainer, "note", None)
        return answer | ({"note": note} if note else {})

    def run(architecture, method, seconds):
        """Steps until `seconds` are over. A first one that is short is not counted: the caches
        are another process's.
        """
        step, measured = trainers[architecture, method].step, []
        begin = time.perf_counter()
        while not measured or (time.perf_counter() - begin < seconds and len(measured) < 50):
            start = time.perf_counter()
            step()
            measured.append(time.perf_counter() - start)
        if len(measured) > 1 and measured[0] < seconds / 4:
            measured = measured[1:]
        return {"seconds": measured, "peak_bytes": _peak()}

    def drop(architecture, method):
        del trainers[architecture, method]
        return {}

    def checked(architecture, method):
        return check(make, architecture, method)

    known = {"prepare": prepare, "run": run, "drop": drop, "check": checked}
    print(json.dumps({"versions": versions}), file=answers, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = known[request.pop("do")](**request)
        except Exception as error:  # what a library cannot do is a result, too
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {_message(error)}"}
        print(json.dumps(answer), file=answers, flush=True)
