"""tfdp: the train function that `fit` runs, under tf.function and compiled by XLA."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["KERAS_BACKEND"] = "tensorflow"

import keras
import keras_models
import protocol
import sizes
import tensorflow as tf

import tfdp

tf.config.threading.set_intra_op_parallelism_threads(sizes.THREADS)
tf.config.threading.set_inter_op_parallelism_threads(sizes.THREADS)


class Trainer:
    def __init__(self, name, method, optimizer, noise_multiplier, clip_norm, batch_size):
        model = keras_models.build(name)
        rate = sizes.RATES[optimizer]
        optimizer = {"adam": keras.optimizers.Adam, "sgd": keras.optimizers.SGD}[optimizer](rate)
        self.private = method.startswith("private")
        if self.private:
            model = tfdp.make_private(model)
            optimizer = tfdp.optimizers.DPOptimizer(
                optimizer,
                noise_multiplier=noise_multiplier,
                clip_norm=clip_norm,
                num_examples=sizes.NUM_EXAMPLES,
                expected_batch_size=batch_size,
            )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer, loss=loss, jit_compile=method.endswith("XLA"))
        optimizer.build(model.trainable_variables)
        model.make_train_function()
        self.model = model

    def feed(self, inputs, labels):
        inputs = inputs if len(inputs) > 1 else inputs[0]
        batch = (inputs, labels)
        if self.private:  # examples of weight 0 are padding
            batch += (tf.ones([len(labels)]),)
        data = tf.data.Dataset.from_tensors(batch).repeat()
        self.batches = iter(data.prefetch(1))

    def step(self):
        results = self.model.train_function(self.batches)
        return {name: float(value) for name, value in results.items()}

    def get(self):
        return [v.numpy() for v in self.model.trainable_variables]

    def set(self, values):
        for variable, value in zip(self.model.trainable_variables, values, strict=True):
            variable.assign(value)


if __name__ == "__main__":
    protocol.serve(
        Trainer,
        {"tfdp": tfdp.__version__, "tensorflow": tf.__version__, "keras": keras.__version__},
    )
