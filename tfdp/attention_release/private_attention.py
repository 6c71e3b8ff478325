"""The private release of an attention matrix."""

from __future__ import annotations

import dp_accounting
import keras
import numpy as np
import tensorflow as tf

from tfdp.accounting import Ledger, LedgerEntry, PrivacyBudget
from tfdp.accounting.charges.ledger_entry import ABOUT_INPUT
from tfdp.accounting.release_series import affordable_calls
from tfdp.attention_release import mechanisms
from tfdp.attention_release.clipping import clip_norms
from tfdp.attention_release.explain import explanation
from tfdp.attention_release.release_plan import Setting, check_mechanism, plan_release
from tfdp.attention_release.sensitivity import check_unit
from tfdp.attention_release.statement import release_statement, what_is_said
from tfdp.attention_release.weights import ACTIVATIONS, attention_weights, combined_mask
from tfdp.fixed_settings import FixedSettings
from tfdp.noise import ServingNoiseSource

_OWN_CALL = (
    "`call` of {} uses the input only in one call of PrivateAttention, and returns nothing else "
    "that was computed from it"
)
_OF_TRAINING = ("training", "forward noise", "tuning", "no privacy")


@keras.saving.register_keras_serializable(package="tfdp")
class PrivateAttention(FixedSettings, keras.layers.Layer):
    """Attention weights that can be published: every call is one private release of its input.

    Returns the matrix D^-1 f(logits) with logits X X' / sqrt(d) for a query alone (the paper's
    symmetric attention) or Q K' / sqrt(d) for a query and a key, f = exp or cosh. The inputs are
    clipped, the logits privatised, and everything after that is post-processing. The layer has no
    weights: project before it.

    Formal guarantees: one call is (epsilon, delta)-differentially private with respect to each
    example's own input, over all heads together, where inputs are neighbours if they differ in
    one `unit`. Length, width and mask are public. Examples of a batch are inputs of different
    people: each has its own noise. Only the returned matrix is private: attention times values is
    private only if the values are. No gradient flows through the layer.

    | unit | neighbours differ in | clipped | valid |
    | "sequence" | anything | rows | everywhere |
    | "token" | one token | rows | if a row depends on its own token only (embeddings) |
    | "feature" | one feature | columns | if a column depends on its own feature only |

    After any attention, recurrence, convolution or pooling, one token moves every row and only
    "sequence" is valid. "token" and "feature" are assertions by the user: tfdp does not check them,
    and the privacy statement repeats them.

    Args:
        budget: `tfdp.PrivacyBudget` of one call, shared by the heads.
        max_norm: alpha, the l2 norm to which rows (columns for "feature") of each head are clipped.
        unit: "sequence", "token" or "feature".
        neighbor_distance: beta, the l2 distance up to which the token's row (of query and key
            alike) or the feature's column may move; `None` is any replacement.
        ridge: eta, for "gaussian_sampling". `None` takes the smallest that num_samples and the
            budget allow. If num_samples is `None` too, it takes the smallest whose error is within
            5% of that of the largest ridge.
        num_samples: k, for "gaussian_sampling"; `None` takes the most that the budget allows.
        activation: f, "exp" or "cosh".
        mechanism: "gaussian_noise" (analytic Gaussian, on X X' or directly on Q K'),
            "gaussian_sampling" (the paper's: a sample covariance, of [Q; K] if there is a key), or
            "auto" for the one with the smaller error.
        seed: integer for tests only; the noise of this process is then not private.

    Call arguments:
        query: (batch, length, width) or (batch, length, heads, width); all but batch static.
        key: `None`, or a tensor of the query's shape, whose row i belongs to the same token.
        attention_mask: bool, (length, length) or with leading batch and heads axes; True where a
            query may attend. Passing it asserts that it is public.
        use_causal_mask: whether queries attend to no later position.

    Returns:
        (batch, length, length), or (batch, heads, length, length). Rows sum to 1, masked entries
        are exactly 0, rows in which everything is masked are 0.

    Raises:
        ValueError: at construction for arguments out of range; when built, if shapes are not
            static or the error would exceed every logit, saying how large it would be and what
            must change; when called with an implicit Keras mask (computed from the private
            input) and no `attention_mask`.
        BudgetError: when built, if the budget does not cover `ridge` and `num_samples`.

    Source: "Differentially Private Attention Computation", algorithm 1; MATH.md section 6.

    Example:

    >>> layer = PrivateAttention(PrivacyBudget(1.0, 1e-5), max_norm=1.0, unit="feature")
    >>> layer(tf.random.normal([2, 16, 64])).shape
    TensorShape([2, 16, 16])
    """

    fixed = (
        "budget", "max_norm", "unit", "neighbor_distance", "ridge", "num_samples", "mechanism",
        "seed",
    )  # fmt: skip

    def __init__(
        self,
        budget: PrivacyBudget,
        max_norm: float,
        unit: str = "sequence",
        neighbor_distance: float | None = None,
        ridge: float | None = None,
        num_samples: int | None = None,
        activation: str = "exp",
        mechanism: str = "auto",
        seed: int | None = None,
        **kwargs,
    ):
        if kwargs.get("autocast"):
            raise ValueError(
                "Argument `autocast` must be left out: rounding could move neighbouring inputs "
                "further apart than `neighbor_distance`. Received: autocast=True"
            )
        super().__init__(**{**kwargs, "autocast": False})
        if not isinstance(budget, PrivacyBudget):
            raise ValueError(
                f"Argument `budget` must be a tfdp.PrivacyBudget. Received: budget={budget!r}"
            )
        check_unit(unit, max_norm, neighbor_distance)
        check_mechanism(mechanism, ridge, num_samples)
        if activation not in ACTIVATIONS:
            raise ValueError(
                f"Argument `activation` must be one of {ACTIVATIONS}. "
                f"Received: activation={activation!r}"
            )
        self.budget = budget
        self.max_norm = float(max_norm)
        self.unit = unit
        self.neighbor_distance = neighbor_distance
        self.ridge = ridge
        self.num_samples = num_samples
        self.activation = activation
        self.mechanism = mechanism
        self.seed = seed
        self.supports_masking = True  # an implicit mask is refused in `call`, not ignored
        self._plan = None
        self._noise = ServingNoiseSource(seed)

    def build(self, query_shape, key_shape=None):
        if len(query_shape) not in (3, 4) or None in tuple(query_shape[1:]):
            raise ValueError(
                "Argument `query` must have shape (batch, length, width) or (batch, length, heads, "
                "width). All sizes except batch must be static, because the noise depends on them: "
                "pad to a fixed length and pass attention_mask. Received: shape "
                f"{tuple(query_shape)}"
            )
        if key_shape is not None and tuple(key_shape[1:]) != tuple(query_shape[1:]):
            raise ValueError(
                "Argument `key` must have the query's shape, because row i of both must belong "
                f"to the same token. Received: query of shape {tuple(query_shape)}, key of shape "
                f"{tuple(key_shape)}"
            )
        setting = Setting(
            budget=self.budget,
            unit=self.unit,
            max_norm=self.max_norm,
            neighbor_distance=self.neighbor_distance,
            symmetric=key_shape is None,
            length=int(query_shape[1]),
            width=int(query_shape[-1]),
            heads=int(query_shape[2]) if len(query_shape) == 4 else 1,
        )
        self._plan = plan_release(setting, self.mechanism, self.ridge, self.num_samples)
        self._built_shape = tuple(query_shape[1:])

    def call(
        self,
        query,
        key=None,
        attention_mask=None,
        use_causal_mask=False,
        mask=None,
        query_mask=None,
        key_mask=None,
    ):
        if attention_mask is None and not (
            mask is None and query_mask is None and key_mask is None
        ):
            raise ValueError(
                f"Layer {self.name!r} received an implicit Keras mask (from mask_zero=True or a "
                "Masking layer). The mask was computed from the private input. If the lengths of "
                "the inputs are public, pass attention_mask=...; otherwise remove the mask and "
                "let padding count as tokens."
            )
        self._check_as_built(query, key)
        multi_head = len(query.shape) == 4
        logits = self._release(_heads_first(query), None if key is None else _heads_first(key))
        allowed = combined_mask(attention_mask, use_causal_mask, multi_head, query.shape[1])
        weights = attention_weights(logits, self.activation, allowed)
        weights = tf.cast(weights, self.compute_dtype)
        return tf.stop_gradient(weights if multi_head else weights[:, 0])

    def compute_mask(self, query, previous_mask):
        return None

    def compute_output_shape(self, query_shape, key_shape=None):
        batch, length = query_shape[0], query_shape[1]
        heads = (query_shape[2],) if len(query_shape) == 4 else ()
        return (batch, *heads, length, length)

    @property
    def release_plan(self):
        """The public settings of every call: mechanism, noise, sensitivity, `error()`."""
        if self._plan is None:
            raise ValueError(
                f"Layer {self.name!r} is not built, and its noise depends on the input shape. "
                "Call it, or call build(query_shape, key_shape), first."
            )
        return self._plan

    @property
    def built_shape(self):
        """Shape of query and key for one input: (length, width) or (length, heads, width)."""
        return self._built_shape

    @property
    def noise_resource(self):
        """Handle of the state that every call draws from once, known by it in traced functions."""
        return self._noise.resource_handle

    def event(self):
        """One call, over all heads, as a `dp_accounting.DpEvent`.

        Its noise is relative to the change between neighbours, for each unit. A ledger's default
        adjacency therefore gives exactly the epsilon of the statement; "replace_one" would double a
        Gaussian's sensitivity once more.
        """
        return self.release_plan.event

    def charge(self, ledger, calls=1):
        """Charges calls about one input to a ledger kept for that input.

        Only the caller knows which calls were about the same input, so calls are not charged
        automatically.

        Args:
            ledger: `tfdp.accounting.Ledger` of releases about inference inputs. Its epsilon is by
                accountant="rdp" if any release is by "gaussian_sampling".
            calls: a count.

        Raises:
            ValueError: if the ledger holds training; it protects other people.
        """
        if any(_is_training(entry) for entry in ledger.entries):
            raise ValueError(
                "Argument `ledger` must be a separate ledger: releases about inference inputs do "
                "not belong to the training ledger. Make one, `tfdp.accounting.Ledger()`, for "
                "each protected input. Received a ledger that holds training."
            )
        said = what_is_said(self.release_plan.setting, self.seed, self._own_assumptions())
        details = {"kind": ABOUT_INPUT, **said}
        ledger.merge(Ledger([LedgerEntry(self.name, self.event(), calls, details)]))

    def affordable_calls(self, budget):
        """How many calls about one input a total `PrivacyBudget` affords."""
        return affordable_calls(self.event(), budget)

    def privacy_statement(self):
        """A `ReleaseStatement`: epsilon per call and for 10, 100 and 1,000 calls, assertions."""
        return release_statement(self.release_plan, self.seed, self._own_assumptions())

    def explain(self, print_fn=print):
        """Prints cost and expected error of both mechanisms, without releasing anything."""
        print_fn(explanation(self.release_plan))

    def get_config(self):
        return {
            **super().get_config(),
            "budget": {"epsilon": self.budget.epsilon, "delta": self.budget.delta},
            "max_norm": self.max_norm,
            "unit": self.unit,
            "neighbor_distance": self.neighbor_distance,
            "ridge": self.ridge,
            "num_samples": self.num_samples,
            "activation": self.activation,
            "mechanism": self.mechanism,
            "seed": self.seed,
        }

    @classmethod
    def from_config(cls, config):
        return cls(**{**config, "budget": PrivacyBudget(**config["budget"])})

    def _own_assumptions(self):
        own = type(self)
        return () if own.call is PrivateAttention.call else (_OWN_CALL.format(own.__name__),)

    def _check_as_built(self, query, key):
        same_form = (key is None) == self.release_plan.setting.symmetric
        for x in (query,) if key is None else (query, key):
            same_form = same_form and tuple(x.shape[1:]) == self._built_shape
        if not same_form:
            form = "without" if self.release_plan.setting.symmetric else "with"
            raise ValueError(
                f"Layer {self.name!r} must be called as it was built: {form} a key, on shape "
                f"(batch, {', '.join(map(str, self._built_shape))}). Its noise depends on both. "
                "Use another layer for another form. "
                f"Received: query of shape {query.shape}, key "
                f"{'None' if key is None else f'of shape {key.shape}'}"
            )

    def _release(self, q, k):
        """Private logits (batch, heads, length, length)."""
        release_plan = self.release_plan
        n = release_plan.setting.length
        z = q if k is None else tf.concat([q, k], axis=-2)
        z = clip_norms(z, self.max_norm, axis=-2 if self.unit == "feature" else -1)
        if release_plan.mechanism == "gaussian_sampling":
            z = mechanisms.sampled_covariance(
                z, release_plan.ridge, release_plan.num_samples, self._noise
            )
            z = mechanisms.rounded(z, release_plan.ridge)
            matrix = (
                z - release_plan.ridge * tf.eye(n, dtype=z.dtype) if k is None else z[..., :n, n:]
            )
        else:
            amount = release_plan.sensitivity, release_plan.noise_multiplier, self._noise
            if k is None:
                matrix = mechanisms.noisy_gram(z, *amount)
            else:
                matrix = mechanisms.noisy_product(z[..., :n, :], z[..., n:, :], *amount)
        return matrix / np.sqrt(release_plan.setting.width)


def _heads_first(x):
    """(batch, heads, length, width), float64."""
    x = tf.cast(x, tf.float64)
    return tf.transpose(x, [0, 2, 1, 3]) if len(x.shape) == 4 else x[:, tf.newaxis]


def _is_training(entry):
    sampled = isinstance(entry.event, dp_accounting.PoissonSampledDpEvent)
    return sampled or entry.details.get("kind") in _OF_TRAINING
