"""Recommenders of the next item, from histories of users."""

import pathlib

import keras

import tfdp
from tfdp.commands.progress import working
from tfdp.commands.recipes.trained import Trained, delta_of, fit_plain, fit_private, print_size
from tfdp.metrics import NDCG, HitRate

#: Of exact counts: far below one count, and so is a threshold of a hundred such deviations.
_NO_NOISE = {"noise_multiplier": 1e-4, "threshold": 100.0, "rounds": 1}


def transitions(arguments):
    data = _sequences(arguments, max_length=200)
    delta = delta_of(arguments, data.num_users)

    def released(**settings):
        release = tfdp.data.private_transitions(data.train, **settings)
        odds = tfdp.layers.TransitionOdds(release)
        length = max(data.max_length, odds.last_items)
        return tfdp.models.TransitionRecommender(odds, length, exclude_seen=arguments.exclude_seen)

    def without_privacy():
        with working("Counting which item follows which, without noise"):
            return released(**_NO_NOISE)

    with working("Releasing which item follows which"):
        model = released(epsilon=arguments.epsilon, delta=delta)
    return Trained(model, delta, _ranking_of(data), without_privacy, items=data.items)


def dpformer(arguments):
    data = _sequences(arguments, max_length=50)
    delta = delta_of(arguments, data.num_users)
    with working("Releasing item frequencies"):
        frequency = tfdp.data.private_frequency(data.train, epsilon=arguments.epsilon / 16)
    batch = arguments.batch_size or max(1, data.num_users // 8)
    epochs = arguments.epochs or 20
    batches = tfdp.data.poisson_batches(data.train, batch)

    def adam():
        return keras.optimizers.Adam(arguments.learning_rate or 1e-2)

    def compiled(optimizer):
        model = tfdp.models.DPFormer(
            data.num_items, data.max_length, dim=32, item_frequency=frequency,
            popularity_prior=frequency,
        )  # fmt: skip
        model.compile(optimizer)
        return model

    model = compiled(
        tfdp.optimizers.DPOptimizer(
            adam(),
            budget=tfdp.PrivacyBudget(arguments.epsilon, delta),
            clipping="normalized",
            microbatch_size=min(512, batch),
        )
    )
    curve = fit_private(model, batches, epochs)
    return Trained(
        model, delta, _ranking_of(data), lambda: fit_plain(compiled(adam()), batches, epochs),
        curve, data.items,
    )  # fmt: skip


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
    print_size("users", data.num_users, f", {data.num_items:,} items")
    return data


def _ranking_of(data):
    """Function of a model -> how it ranks every user's last item."""

    def ranking(model):
        ndcg, hit = NDCG(10), HitRate(10)
        x, items = data.held_out
        with working("Ranking the held-out items"):
            for start in range(0, len(x), 256):
                scores = model.score_next(x[start : start + 256])
                for metric in (ndcg, hit):
                    metric.update_state(items[start : start + 256], scores)
        return (
            f"NDCG@10 {100 * float(ndcg.result()):.2f} %, HIT@10 {100 * float(hit.result()):.2f} %"
        )

    return ranking
