"""Classes of texts, from one release of their representations."""

import keras

import tfdp
from tfdp.commands.progress import working
from tfdp.commands.recipes.trained import Trained, delta_of, fit_plain, print_size, quality_on


def text(arguments):
    with working(f"Reading {arguments.data}"):
        data = tfdp.data.load_texts(
            arguments.data, arguments.text, arguments.label, arguments.classes or ("0", "1"),
            delimiter=arguments.delimiter,
        )  # fmt: skip
    print_size("texts", data.num_examples)
    delta = delta_of(arguments, data.num_examples)
    backbone = None
    if arguments.backbone is not None:
        import keras_hub

        backbone = keras_hub.models.Backbone.from_preset(arguments.backbone)
    else:
        print("Without --backbone the encoder is small and random: a public preset is far better.")
    batch = min(arguments.batch_size or 256, data.num_examples)
    epochs = arguments.epochs or 20

    def compiled(backbone, budget):
        model = tfdp.models.TextClassifier(
            arguments.vocabulary, num_classes=len(data.classes), backbone=backbone,
            max_length=arguments.max_length or 64, budget=budget,
        )  # fmt: skip
        model.compile(
            keras.optimizers.Adam(arguments.learning_rate or 1e-3),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
        return model

    model = compiled(backbone, tfdp.PrivacyBudget(arguments.epsilon, delta))
    with working("Encoding and releasing the texts, once"):
        release = model.release(*data.train)
    fit_plain(model, release.batches(batch, True), epochs)

    def without_privacy():
        # The same encoder, whose weights no training has changed.
        plain = compiled(model.backbone, None)
        texts, labels = data.train
        with working("Encoding the texts"):
            rows = plain.representations(texts)
        return fit_plain(plain, tfdp.data.poisson_batches((rows, labels), batch), epochs)

    return Trained(model, delta, quality_on(data.test, "texts", 256), without_privacy)
