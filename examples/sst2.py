# %% [markdown]
# # A private classifier of texts
#
# A public encoder of keras_hub, and DP-SGD on a head and LoRA weights.
#
#     python examples/sst2.py                                          on generated reviews
#     python examples/sst2.py --data SST-2 --preset bert_tiny_en_uncased
#
# The folder holds train.tsv and dev.tsv with the columns sentence and label.

# %%
import argparse
import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import keras_hub
import numpy as np
import tensorflow as tf

import tfdp

parser = argparse.ArgumentParser(description="A private classifier of texts.")
parser.add_argument("--data", help="folder with train.tsv and dev.tsv")
parser.add_argument("--preset", help="a public BERT of keras_hub, by name or folder")
parser.add_argument("--epsilon", type=float, default=3.0)
parser.add_argument("--epochs", type=int, default=8)
parser.add_argument("--max-length", type=int, default=32)
# A notebook has no command line: change the settings here.
args = parser.parse_args([] if "ipykernel" in sys.modules else None)
if args.data is not None and args.preset is None:
    parser.error("--data needs --preset, a public encoder: the generated one knows 23 words")

# %% [markdown]
# ## The data

# %%
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
GOOD, BAD = ["good", "charming", "warm", "bright"], ["bad", "dull", "cold", "slow"]
OTHER = ["a", "the", "film", "and", "story", "with", "actors", "music", "this", "of"]


def generated(count, seed, others=OTHER):
    """Reviews of other words, and two that tell whether it was liked."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, count)
    texts = []
    for label in labels:
        words = [*rng.choice(others, rng.integers(3, 9)), *rng.choice(GOOD if label else BAD, 2)]
        texts.append(" ".join(rng.permutation(words)))
    return np.array(texts, object), labels


if args.data is None:
    train, test = generated(3_000, seed=0), generated(500, seed=1)
else:
    data = tfdp.data.load_sst2(args.data)
    train, test = data.train, data.dev
n = len(train[0])
print(f"{n:,} texts, such as: {train[0][0]!r}")

# %% [markdown]
# ## Tokens
#
# A vocabulary that is made from the private texts would be an uncharged release: it comes with the
# public encoder.

# %%
if args.preset is not None:
    vocabulary = keras_hub.models.BertTokenizer.from_preset(args.preset).get_vocabulary()
else:
    vocabulary = [*SPECIAL, *GOOD, *BAD, *OTHER]
tokenizer = tfdp.layers.TextTokenizer(vocabulary, max_length=args.max_length)


def tokens(texts):
    return {name: ids.numpy() for name, ids in tokenizer(tf.constant(list(texts))).items()}


# %% [markdown]
# ## A public encoder
#
# Without a preset, a small one stands in. It is trained without privacy on texts that are public:
# reviews of something else.

# %%
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
if args.preset is not None:
    backbone = keras_hub.models.BertBackbone.from_preset(args.preset)
else:
    backbone = keras_hub.models.BertBackbone(
        vocabulary_size=len(vocabulary), num_layers=1, num_heads=2, hidden_dim=32,
        intermediate_dim=64, max_sequence_length=args.max_length,
    )  # fmt: skip
    texts, labels = generated(3_000, seed=2, others=OTHER[:5])
    public = keras_hub.models.BertTextClassifier(backbone, num_classes=2, preprocessor=None)
    public.compile(keras.optimizers.Adam(1e-3), loss, metrics=["accuracy"])
    public.fit(tokens(texts), labels, batch_size=32, epochs=3, verbose=2)

# %% [markdown]
# ## The model
#
# `enable_lora` freezes the encoder and puts small trainable matrices beside queries and values. The
# head is new.

# %%
backbone.enable_lora(rank=4)
classifier = keras_hub.models.BertTextClassifier(backbone, num_classes=2, preprocessor=None)
model = tfdp.make_private(classifier)
print(f"{sum(int(np.prod(w.shape)) for w in model.trainable_weights):,} weights are trained")
print(tfdp.clipping.explain(classifier))

# %% [markdown]
# ## Training

# %%
model.compile(
    tfdp.optimizers.DPOptimizer(
        keras.optimizers.Adam(3e-3),
        budget=tfdp.PrivacyBudget(args.epsilon, 0.1 / n),
        clipping="normalized",
        microbatch_size=256,
    ),
    loss=loss,
    metrics=["accuracy"],
)
batches = tfdp.data.poisson_batches((tokens(train[0]), train[1]), expected_batch_size=n // 10)
model.fit(batches, epochs=args.epochs, callbacks=[tfdp.callbacks.PrivacyMeter()], verbose=2)

# %% [markdown]
# ## How good, and what is promised

# %%
results = model.evaluate(tokens(test[0]), test[1], return_dict=True, verbose=0)
print(f"held-out texts: {results}\n\n{model.privacy_statement()}")
