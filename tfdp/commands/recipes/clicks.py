"""Click models on sparse tables."""

import keras

import tfdp
from tfdp.commands.progress import working
from tfdp.commands.recipes.trained import (
    Trained,
    delta_of,
    fit_plain,
    fit_private,
    print_size,
    quality_on,
)

#: AdaFEST's threshold over its noise: one untouched row in 300,000 survives a step by noise alone.
_STDDEVS = 4.5
_BUCKETS = 10_000
#: Most gradients keep their length, or probabilities would not be true.
_CLIP_NORM = 10.0


def ctr(arguments):
    with working(f"Reading {arguments.data}"):
        data = _clicks(arguments)
    print_size("impressions", data.num_examples)
    delta = delta_of(arguments, data.num_examples)
    batch = min(arguments.batch_size or 2048, data.num_examples)
    epochs = arguments.epochs or 4
    budget = tfdp.PrivacyBudget(arguments.epsilon, delta)
    selection = _threshold(data, budget, batch, epochs)
    print(selection.explain(data.vocabulary_sizes, _noise(data, budget, batch, epochs), batch))
    rate = arguments.learning_rate or 1e-3
    batches = tfdp.data.poisson_batches(data.train, batch)

    def compiled(optimizer):
        model = tfdp.models.PrivateCTR(
            data.vocabulary_sizes,
            num_integers=data.train[0]["integers"].shape[1] if "integers" in data.train[0] else 0,
            privacy_assumptions=data.privacy_assumptions,
        )
        model.compile(optimizer)
        return model

    model = compiled(
        tfdp.optimizers.DPOptimizer(
            keras.optimizers.Adam(rate),
            budget=budget,
            clip_norm=_CLIP_NORM,
            selection=selection,
            embedding_optimizer=tfdp.optimizers.LazyAdam(rate),
        )
    )
    curve = fit_private(model, batches, epochs)

    def without_privacy():
        return fit_plain(compiled(tfdp.optimizers.LazyAdam(rate)), batches, epochs)

    quality = quality_on(data.test, "impressions", 1024)
    return Trained(model, delta, quality, without_privacy, curve)


def _clicks(arguments):
    if arguments.label is None:
        buckets = arguments.hash_buckets or tfdp.data.CRITEO_VOCABULARY_SIZES
        return tfdp.data.load_criteo(arguments.data, hash_buckets=buckets)
    if not arguments.categories:
        raise ValueError("--label needs --categories: name the columns that predict a click")
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
