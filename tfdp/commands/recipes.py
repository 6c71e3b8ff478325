"""The models of `tfdp train`, with settings that suit most data."""

import pathlib

import keras

import tfdp
from tfdp.accounting.budget import check_delta
from tfdp.commands.progress import working
from tfdp.metrics import NDCG, HitRate

#: AdaFEST's threshold over its noise: one untouched row in 300,000 survives a step by noise alone.
_STDDEVS = 4.5
_BUCKETS = 10_000
#: Of a click model: most gradients keep their length, or its probabilities would not be true.
_CLIP_NORM = 10.0


def train(arguments):
    """Trains what the arguments of `tfdp train` ask for.

    Returns:
        (a trained `DPModel`, the δ of its statement, names of the items in the order of their ids
        or None).

    Raises:
        ValueError: for data that are not as the arguments say.
    """
    return {"transitions": _transitions, "dpformer": _dpformer, "ctr": _ctr, "text": _text}[
        arguments.model
    ](arguments)


def _transitions(arguments):
    data = _sequences(arguments, max_length=200)
    delta = _delta(arguments, data.num_users)
    with working("Releasing which item follows which"):
        release = tfdp.data.private_transitions(data.train, epsilon=arguments.epsilon, delta=delta)
    odds = tfdp.layers.TransitionOdds(release)
    model = tfdp.models.TransitionRecommender(
        odds, max(data.max_length, odds.last_items), exclude_seen=arguments.exclude_seen
    )
    model.compile(metrics=[NDCG(10), HitRate(10)])
    results = model.evaluate(*data.held_out, batch_size=256, return_dict=True)
    _print_ranking(results, data)
    return model, delta, data.items


def _dpformer(arguments):
    data = _sequences(arguments, max_length=50)
    delta = _delta(arguments, data.num_users)
    with working("Releasing item frequencies"):
        frequency = tfdp.data.private_frequency(data.train, epsilon=arguments.epsilon / 16)
    model = tfdp.models.DPFormer(
        data.num_items, data.max_length, dim=32, item_frequency=frequency,
        popularity_prior=frequency,
    )  # fmt: skip
    batch = arguments.batch_size or max(1, data.num_users // 8)
    optimizer = tfdp.optimizers.DPOptimizer(
        keras.optimizers.Adam(arguments.learning_rate or 1e-2),
        budget=tfdp.PrivacyBudget(arguments.epsilon, delta),
        clipping="normalized",
        microbatch_size=min(512, batch),
    )
    model.compile(optimizer)
    _fit(model, data.train, batch, arguments.epochs or 20, arguments.plot)
    ndcg, hit = NDCG(10), HitRate(10)
    x, items = data.held_out
    with working("Ranking the held-out items"):
        for start in range(0, len(x), 256):
            scores = model.score_next(x[start : start + 256])
            for metric in (ndcg, hit):
                metric.update_state(items[start : start + 256], scores)
    _print_ranking({m.name: float(m.result()) for m in (ndcg, hit)}, data)
    return model, delta, data.items


def _ctr(arguments):
    with working(f"Reading {arguments.data}"):
        data = _clicks(arguments)
    _print_size("impressions", data.num_examples)
    delta = _delta(arguments, data.num_examples)
    model = tfdp.models.PrivateCTR(
        data.vocabulary_sizes,
        num_integers=data.train[0]["integers"].shape[1] if "integers" in data.train[0] else 0,
        privacy_assumptions=data.privacy_assumptions,
    )
    batch = min(arguments.batch_size or 2048, data.num_examples)
    epochs = arguments.epochs or 4
    budget = tfdp.PrivacyBudget(arguments.epsilon, delta)
    selection = _threshold(data, budget, batch, epochs)
    print(selection.explain(data.vocabulary_sizes, _noise(data, budget, batch, epochs), batch))
    rate = arguments.learning_rate or 1e-3
    model.compile(
        tfdp.optimizers.DPOptimizer(
            keras.optimizers.Adam(rate),
            budget=budget,
            clip_norm=_CLIP_NORM,
            selection=selection,
            embedding_optimizer=tfdp.optimizers.LazyAdam(rate),
        )
    )
    _fit(model, data.train, batch, epochs, arguments.plot)
    if len(data.test[1]):
        print("On held-out impressions (computed on raw data, not covered):")
        model.evaluate(*data.test, batch_size=1024)
    return model, delta, None


def _clicks(arguments):
    if arguments.label is None:
        buckets = arguments.hash_buckets or tfdp.data.CRITEO_VOCABULARY_SIZES
        return tfdp.data.load_criteo(arguments.data, hash_buckets=buckets)
    if not arguments.categories:
        raise ValueError("--label needs --categories, the columns of what an ad may depend on")
    buckets = arguments.hash_buckets or _BUCKETS
    return tfdp.data.load_clicks(
        arguments.data, arguments.label, dict.fromkeys(arguments.categories, buckets),
        arguments.counts or (), delimiter=arguments.delimiter,
    )  # fmt: skip


def _noise(data, budget, batch, epochs):
    """About the noise multiplier that `fit` will find; only a threshold depends on it."""
    n = data.num_examples
    steps = epochs * max(1, round(n / batch))
    return tfdp.accounting.calibrate_noise_multiplier(budget, batch / n, steps)


def _threshold(data, budget, batch, epochs):
    """AdaFEST whose threshold is so many standard deviations above its noise."""
    settings = {"noise_ratio": 1.0, "contribution_norm": len(data.vocabulary_sizes) ** 0.5}
    sizes, sigma = data.vocabulary_sizes, _noise(data, budget, batch, epochs)
    stddev = tfdp.selection.AdaFEST(1.0, **settings).explain(sizes, sigma).noise_stddev
    return tfdp.selection.AdaFEST(_STDDEVS * stddev, **settings)


def _text(arguments):
    with working(f"Reading {arguments.data}"):
        data = tfdp.data.load_texts(
            arguments.data, arguments.text, arguments.label, arguments.classes or ("0", "1"),
            delimiter=arguments.delimiter,
        )  # fmt: skip
    _print_size("texts", data.num_examples)
    delta = _delta(arguments, data.num_examples)
    backbone = None
    if arguments.backbone is not None:
        import keras_hub

        backbone = keras_hub.models.Backbone.from_preset(arguments.backbone)
    else:
        print("Without --backbone the encoder is small and random: a public preset is far better.")
    model = tfdp.models.TextClassifier(
        arguments.vocabulary, num_classes=len(data.classes), backbone=backbone,
        max_length=arguments.max_length or 64,
        budget=tfdp.PrivacyBudget(arguments.epsilon, delta),
    )  # fmt: skip
    model.compile(
        keras.optimizers.Adam(arguments.learning_rate or 1e-3),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    with working("Encoding and releasing the texts, once"):
        release = model.release(*data.train)
    batch = min(arguments.batch_size or 256, data.num_examples)
    model.fit(release.batches(batch, True), epochs=arguments.epochs or 20)
    if len(data.test[1]):
        print("On held-out texts (computed on raw data, not covered):")
        model.evaluate(*data.test, batch_size=256)
    return model, delta, None


def _sequences(arguments, max_length):
    items = arguments.items
    if items not in (None, "from_data"):
        items = pathlib.Path(items).read_text(encoding="utf-8").splitlines()
    with working(f"Reading {arguments.data}"):
        data = tfdp.data.load_sequences(
            arguments.data, arguments.max_length or max_length, arguments.num_items,
            user=arguments.user, item=arguments.item, timestamp=arguments.timestamp,
            delimiter=arguments.delimiter, items=items,
        )  # fmt: skip
    _print_size("users", data.num_users, f", {data.num_items:,} items")
    return data


def _fit(model, train, batch, epochs, plot):
    curve = tfdp.callbacks.PrivacyCurve()
    batches = tfdp.data.poisson_batches(train, batch)
    model.fit(batches, epochs=epochs, callbacks=[tfdp.callbacks.PrivacyMeter(), curve])
    if plot is not None:
        curve.plot(plot)
        print(f"plot written to {plot}")


def _delta(arguments, num_examples):
    """δ as given or 1/(10 n); what the statement would refuse is refused before any release."""
    if arguments.delta is None:
        return 0.1 / num_examples
    try:
        check_delta(arguments.delta, num_examples)
    except ValueError as error:
        raise ValueError(
            f"--delta must be at most 1/n = {1 / num_examples:.6g}, where n = {num_examples} are "
            f"protected; choose a smaller one. Received: {arguments.delta}"
        ) from error
    return arguments.delta


def _print_size(what, count, more=""):
    print(f"{count:,} {what}{more}; n is taken to be public.")


def _print_ranking(results, data):
    values = ", ".join(f"{name} {100 * value:.2f} %" for name, value in results.items())
    print(f"Held-out items, ranked among all {data.num_items:,}: {values}")
    print("  (computed on raw data: not covered by the statement)")
