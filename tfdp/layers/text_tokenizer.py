"""Text to token ids, inside the graph."""

import os
import pathlib
from collections.abc import Sequence

import keras
import tensorflow as tf

SPECIAL_TOKENS = ("[CLS]", "[SEP]", "[UNK]", "[PAD]")


@keras.saving.register_keras_serializable(package="tfdp")
class TextTokenizer(keras.layers.Layer):
    """Splits raw strings into WordPiece ids, with tensorflow-text, as BERT does.

    The vocabulary must be public. A vocabulary that was counted on the private texts would be an
    uncharged release.

    Args:
        vocabulary: path of a vocabulary file (one token a line), or the list of its tokens. It
            holds "[CLS]", "[SEP]", "[UNK]" and "[PAD]".
        max_length: T, number of positions; longer texts are cut.
        lower_case: whether to lower-case and strip accents first.

    Call arguments:
        texts: string tensor (batch,) or (batch, 1).

    Returns:
        Dict of int32 (batch, T): "token_ids", "padding_mask" (1 where there is a token) and
        "segment_ids" (zeros).

    Raises:
        ImportError: if tensorflow-text is not installed.
        ValueError: if an argument is out of range, or a special token is missing.
    """

    def __init__(
        self,
        vocabulary: str | os.PathLike | Sequence[str],
        max_length: int = 64,
        lower_case: bool = True,
        **kwargs,
    ):
        super().__init__(**kwargs)
        if max_length != int(max_length) or max_length < 3:
            raise ValueError(
                f"Argument `max_length` must be an integer ≥ 3. Received: max_length={max_length}"
            )
        if isinstance(vocabulary, (str, pathlib.Path)):
            vocabulary = pathlib.Path(vocabulary).read_text(encoding="utf-8").splitlines()
        self.vocabulary = list(vocabulary)
        self.privacy_assumptions = [f"the vocabulary of layer {self.name!r} is public"]
        self.max_length = int(max_length)
        self.lower_case = lower_case
        places = {token: i for i, token in enumerate(self.vocabulary)}
        missing = [token for token in SPECIAL_TOKENS if token not in places]
        if missing:
            raise ValueError(
                "Argument `vocabulary` must hold the special tokens of BERT. "
                f"Received: {len(self.vocabulary)} tokens without {missing}"
            )
        self._start, self._end, self._pad = (places[t] for t in ("[CLS]", "[SEP]", "[PAD]"))
        self._tokenizer = _tokenizer(self.vocabulary, lower_case)
        self.supports_jit = False  # strings stay on the host

    @property
    def vocabulary_size(self):
        """Number of token ids."""
        return len(self.vocabulary)

    def call(self, texts):
        texts = tf.convert_to_tensor(texts)
        if texts.shape.rank not in (1, 2) or texts.shape[1:].num_elements() != 1:
            raise ValueError(
                f"Layer {self.name!r} takes texts of shape (batch,) or (batch, 1), one text for "
                f"each example. Received: shape {texts.shape}"
            )
        texts = tf.reshape(texts, [-1])
        tokens = self._tokenizer.tokenize(texts)[:, : self.max_length - 2]
        count = tf.shape(texts)[0]
        start, end = (tf.fill([count, 1], i) for i in (self._start, self._end))
        tokens = tf.concat([start, tf.cast(tokens, tf.int32), end], axis=1)
        shape = [None, self.max_length]
        ids = tokens.to_tensor(self._pad, shape=shape)
        present = tf.ones_like(tokens).to_tensor(0, shape=shape)
        return {"token_ids": ids, "padding_mask": present, "segment_ids": tf.zeros_like(ids)}

    def compute_output_shape(self, texts_shape):
        shape = (texts_shape[0], self.max_length)
        return {name: shape for name in ("token_ids", "padding_mask", "segment_ids")}

    def get_config(self):
        return {
            **super().get_config(),
            "vocabulary": self.vocabulary,
            "max_length": self.max_length,
            "lower_case": self.lower_case,
        }


def _tokenizer(vocabulary, lower_case):
    try:
        import tensorflow_text
    except ImportError as error:
        raise ImportError(
            'TextTokenizer needs tensorflow-text: pip install "tfdp[text]".'
        ) from error
    with tf.init_scope():
        return tensorflow_text.FastBertTokenizer(
            vocabulary,
            token_out_type=tf.int32,
            unknown_token="[UNK]",
            lower_case_nfd_strip_accents=lower_case,
        )
