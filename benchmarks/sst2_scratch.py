"""The small encoder: trained from scratch, and random and frozen; see sst2.py.

Run: python benchmarks/sst2_scratch.py --data ../shared/data/sst2
"""

import argparse

import keras
import sst2
import sst2_encode

import tfdp
from tfdp.accounting import PrivacyBudget
from tfdp.accounting.literature import paper_forward_noise_claim, paper_forward_noise_multiplier

LENGTH, WIDTH = 24, 32
TRAINED = "small, trained from scratch"


def classifier(vocabulary, **kwargs):
    backbone = tfdp.models.text_encoder.small_text_encoder(
        len(vocabulary), LENGTH, width=WIDTH, depth=1, num_heads=2
    )
    return tfdp.models.TextClassifier(
        vocabulary, 2, backbone=backbone, max_length=LENGTH, normalize=False, **kwargs
    )


class TokenTask:
    """Token ids of both parts: the tokenizer is the same for every method, and public."""

    def __init__(self, folder):
        self.vocabulary = (sst2_encode.encoder_folder() / "vocab.txt").read_text().splitlines()
        data = tfdp.data.load_sst2(folder)
        self.train, self.dev = data.train, data.dev
        self.n = data.num_examples
        self.delta = 1 / (2 * self.n)

    def accuracy(self, model):
        scores = model.predict(sst2.tf.constant(self.dev[0].tolist()), batch_size=436, verbose=0)
        return 100 * float((scores.argmax(axis=1) == self.dev[1]).mean())


def plain(task, epochs=2, batch=128):
    model = classifier(task.vocabulary, train_backbone=True)
    model.compile(sst2.adam(2e-3, epochs * task.n // batch), sst2.LOSS)
    model.fit(tfdp.data.shuffled_epochs(task.train, batch), epochs=epochs, verbose=0)
    return task.accuracy(model), None


def dp_sgd(task, epsilon, batch=2048, steps=200):
    """DP-SGD end to end; labels covered."""
    model = classifier(task.vocabulary, train_backbone=True)
    model.compile(
        tfdp.optimizers.DPOptimizer(
            sst2.adam(5e-3, steps), budget=PrivacyBudget(epsilon, task.delta),
            num_examples=task.n, expected_batch_size=batch, steps=steps, microbatch_size=512,
        ),
        sst2.LOSS,
    )  # fmt: skip
    model.fit(tfdp.data.poisson_batches(task.train, batch, steps_per_epoch=steps), verbose=0)
    return task.accuracy(model), model.privacy_statement(task.delta)


def papers_version(task, epsilon, batch=128, micro=32, epochs=2):
    """The paper's, end to end through the noise. Not a guarantee, and no ε at all."""
    settings = (task.n, batch, micro, epochs, task.delta)
    sigma = paper_forward_noise_multiplier(epsilon, *settings)
    model = classifier(
        task.vocabulary, noise_multiplier=sigma, gradient="propagate", train_backbone=True
    )
    model.compile(sst2.adam(2e-3, epochs * task.n // batch), sst2.LOSS)
    data = tfdp.data.microbatches(task.train, batch, micro, max_batch_size=3 * batch)
    model.fit(data, epochs=epochs, verbose=0)
    claim = paper_forward_noise_claim(sigma, *settings)
    return task.accuracy(model), (model.privacy_statement(task.delta), claim)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="../shared/data/sst2")
    task = TokenTask(parser.parse_args().data)
    rows = []
    runs = [("non-private", None, plain)]
    for epsilon in (3, 8, 1):
        runs.append(("DP-SGD end to end", epsilon, dp_sgd))
    runs.append(("the paper's version, end to end (NOT a guarantee)", 3, papers_version))
    for name, epsilon, method in runs:
        call = (lambda m=method: m(task)) if epsilon is None else (
            lambda m=method, e=epsilon: m(task, e))  # fmt: skip
        result = sst2.repeated(call, 1)
        rows.append({"encoder": TRAINED, "method": name, "epsilon": epsilon, **result})
        sst2.say(TRAINED, name, epsilon, result["dev_accuracy"], result.get("true_epsilon"),
                 f"{result['seconds_a_run']:.0f} s")  # fmt: skip
        sst2.write("sst2_scratch.json", {"delta": task.delta, "n": task.n, "rows": rows})
    keras.utils.set_random_seed(0)
    frozen = classifier(task.vocabulary)
    parts = [frozen.representations(texts) for texts, _ in (task.train, task.dev)]
    random = sst2.Task(parts[0], task.train[1], parts[1], task.dev[1])
    sst2.table(random, sst2.RANDOM, 2, "sst2_random.json")


if __name__ == "__main__":
    main()
