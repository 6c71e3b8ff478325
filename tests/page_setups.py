"""What blocks of the pages find in place: small files, and doubles of downloads and devices."""

import inspect
import os
import pathlib
import re
import stat
import sys

import numpy as np
import tomllib

ROOT = pathlib.Path(__file__).resolve().parents[1]


def ml_1m(page):
    """`ml-1m.txt`: 600 users with 3 to 30 items each, of 40."""
    generator = np.random.default_rng(0)
    lines = []
    for user in range(1, 601):
        items = generator.integers(1, 41, generator.integers(3, 31))
        lines += [f"{user} {item}\n" for item in items]
    (page.folder / "ml-1m.txt").write_text("".join(lines))


def sst2(page):
    """`SST-2/train.tsv` and `dev.tsv`: 200 film reviews each."""
    reviews = {"a good film": 1, "a bad film": 0, "good , charming": 1, "dull and bad": 0}
    lines = [f"{text}\t{label}\n" for text, label in reviews.items()] * 50
    (page.folder / "SST-2").mkdir(exist_ok=True)
    for part in ("train", "dev"):
        (page.folder / "SST-2" / f"{part}.tsv").write_text("sentence\tlabel\n" + "".join(lines))


def bert(page):
    """Presets of keras_hub come from here, not from a download: random weights, small."""
    import keras_hub

    words = "[PAD] [UNK] [CLS] [SEP] [MASK] a good bad film charming dull and ,".split()

    def backbone(preset, **kwargs):
        return keras_hub.models.BertBackbone(
            vocabulary_size=len(words), num_layers=1, num_heads=2, hidden_dim=8,
            intermediate_dim=16, max_sequence_length=64, **kwargs,
        )  # fmt: skip

    def tokenizer(preset, **kwargs):
        return keras_hub.models.BertTokenizer(vocabulary=words, lowercase=True)

    page.patch.setattr(keras_hub.models.BertBackbone, "from_preset", backbone)
    page.patch.setattr(keras_hub.models.BertTokenizer, "from_preset", tokenizer)


def two_devices(page):
    """`MirroredStrategy()` finds two devices: logical ones of the CPU."""
    import tensorflow as tf

    mirrored = tf.distribute.MirroredStrategy
    reduction = tf.distribute.ReductionToOneDevice()
    page.patch.setattr(
        tf.distribute, "MirroredStrategy",
        lambda: mirrored(["CPU:0", "CPU:1"], cross_device_ops=reduction),
    )  # fmt: skip


def two_tpus(page):
    """TensorFlow's own TPUStrategy over two CPU devices, for who asks for local TPUs."""
    import tensorflow as tf
    import tpu_emulation

    kind = tf.distribute.TPUStrategy
    made_by = kind.__init__

    def init(self, resolver):
        made_by(self, resolver)
        tpu_emulation.put_on_cpus(self, 2)

    tpu_emulation.emulate(page.patch)
    page.patch.setattr(kind, "__init__", init)
    page.patch.setattr(
        tf.distribute.cluster_resolver, "TPUClusterResolver", lambda tpu: tpu_emulation.resolver(2)
    )
    page.patch.setattr(tf.config, "experimental_connect_to_cluster", lambda resolver: None)
    page.patch.setattr(tf.tpu.experimental, "initialize_tpu_system", lambda resolver: None)


def tpu_embeddings(page):
    """Doubles of the embeddings of a TPU v4, which run on TPUs alone."""
    from distribution.tpu_embeddings import KINDS, hardware

    page.stack.enter_context(hardware(KINDS.V1))


def criteo(page):
    """`train.txt`: 4,000 lines in Criteo's form."""
    generator = np.random.default_rng(0)
    categories = generator.zipf(1.3, (4_000, 26)) % 5_000
    clicked = (categories[:, 0] < 3) ^ (generator.random(4_000) < 0.2)
    counts = generator.integers(0, 50, (4_000, 13))
    lines = [
        "\t".join([str(int(y)), *map(str, c), *(f"{v:x}" for v in k)]) + "\n"
        for y, c, k in zip(clicked, counts, categories, strict=True)
    ]
    (page.folder / "train.txt").write_text("".join(lines))


def orders(page):
    """`orders.csv`: 200 customers, 3 to 9 orders each, of the items in `catalogue.txt`."""
    generator = np.random.default_rng(0)
    items = [f"sku-{i}" for i in range(30)]
    lines = ["customer,sku,time\n"]
    for customer in range(200):
        for _ in range(generator.integers(3, 10)):
            day = generator.integers(1, 29)
            lines.append(f"c{customer},{generator.choice(items)},2024-02-{day:02}\n")
    (page.folder / "orders.csv").write_text("".join(lines))
    (page.folder / "catalogue.txt").write_text("\n".join(items) + "\n")


def impressions(page):
    """`impressions.csv`: clicked, ad, device and price of 1,000 impressions."""
    generator = np.random.default_rng(0)
    rows = [
        f"{generator.integers(2)},ad-{generator.integers(50)},phone,{generator.random():.2f}"
        for _ in range(1_000)
    ]
    (page.folder / "impressions.csv").write_text("\n".join(["clicked,ad,device,price", *rows]))


def reviews(page):
    """`reviews.csv`: 200 reviews and votes."""
    rows = ["a good film,up", '"dull, and bad",down'] * 100
    (page.folder / "reviews.csv").write_text("\n".join(["review,vote", *rows]))


def _clicks(rows=3_000):
    generator = np.random.default_rng(0)
    x = generator.normal(size=(rows, 39)).astype("float32")
    return np.concatenate([x, (x[:, :1] > 0).astype("float32")], axis=1)


def clicks_bin(page):
    """`clicks.bin`: rows of 39 float32 numbers and a label."""
    _clicks().tofile(page.folder / "clicks.bin")


def clicks_tsv(page):
    """`clicks.tsv`: a label and 39 numbers a line."""
    np.savetxt(page.folder / "clicks.tsv", np.roll(_clicks(), 1, axis=1), "%.4g", "\t")


def clicks_array_record(page):
    """`clicks.array_record`: rows as in `clicks.bin`."""
    from array_record.python import array_record_module

    writer = array_record_module.ArrayRecordWriter(
        str(page.folder / "clicks.array_record"), "group_size:1"
    )
    for row in _clicks():
        writer.write(row.tobytes())
    writer.close()


def commands(page):
    """`make`, `pip` and `tfdp` of this checkout; the first two say what they would do."""
    folder = page.folder / "bin"
    folder.mkdir(exist_ok=True)
    scripts = {
        "make": f'exec /usr/bin/env -i PATH=/usr/bin:/bin make -n -C {ROOT} "$@"',
        "tfdp": f'exec {sys.executable} -m tfdp.cli "$@"',
        "pip": f'exec {sys.executable} {ROOT / "tests" / "page_setups.py"} "$@"',
    }
    for name, script in scripts.items():
        path = folder / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        os.chmod(path, path.stat().st_mode | stat.S_IXUSR)


def _pip(arguments):
    """`pip install .[extras]`, without installing: the extras exist."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    command, what = arguments
    extras = re.fullmatch(r"\.(?:\[([\w,]+)\])?", what)[1]
    assert command == "install"
    assert set((extras or "plot").split(",")) <= set(project["optional-dependencies"]), extras


def short(page):
    """One small step of every training, run eagerly (a trace takes longer), and small data."""
    import tensorflow as tf

    import tfdp

    model, clicks = tfdp.models.DPModel, tfdp.data.synthetic_clicks
    fit, compile = model.fit, model.compile
    batches, sequences = tfdp.data.poisson_batches, tfdp.data.load_sequences
    former = tfdp.models.DPFormer

    def short_fit(*args, **kwargs):
        given = inspect.signature(fit).bind(*args, **kwargs)
        given.arguments["epochs"] = 1
        if isinstance(given.arguments["x"], tf.data.Dataset):
            given.arguments.setdefault("kwargs", {})["steps_per_epoch"] = 1
        return fit(*given.args, **given.kwargs)

    def eager_compile(model, *args, **kwargs):
        return compile(model, *args, **{**kwargs, "run_eagerly": True})

    def small_batches(data, expected_batch_size, *args, **kwargs):
        return batches(data, min(expected_batch_size, 32), *args, **kwargs)

    def short_sequences(data, max_length, **kwargs):
        return sequences(data, min(max_length, 8), **kwargs)

    def few_clicks(n=3_000, vocabulary_sizes=(2_000, 50, 400), **kwargs):
        return clicks(n, vocabulary_sizes, **kwargs)

    def one_block(*args, **kwargs):
        return former(*args, num_blocks=1, **kwargs)

    page.patch.setattr(model, "fit", short_fit)
    page.patch.setattr(model, "compile", eager_compile)
    page.patch.setattr(tfdp.data, "poisson_batches", small_batches)
    page.patch.setattr(tfdp.data, "load_sequences", short_sequences)
    page.patch.setattr(tfdp.data, "synthetic_clicks", few_clicks)
    page.patch.setattr(tfdp.models, "DPFormer", one_block)


SETUPS = {
    f.__name__: f
    for f in (
        ml_1m, sst2, bert, two_devices, two_tpus, tpu_embeddings, clicks_bin, clicks_tsv,
        clicks_array_record, criteo, commands, orders, impressions,
        reviews,
    )
}  # fmt: skip


if __name__ == "__main__":
    _pip(sys.argv[1:])
