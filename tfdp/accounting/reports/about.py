"""What the owner of a model says in its card: everything that a ledger cannot know."""

from __future__ import annotations

import dataclasses
import math

import tomllib


@dataclasses.dataclass(frozen=True)
class About:
    """What the owner of a model says about it. All of it is published, and none of it is checked.

    Args:
        name, description, version, owner, contact, license: of the model.
        intended_use, out_of_scope: what it is for, and what not.
        training_data: where the data come from, in public terms.
        factors: for whom or on what the model works better or worse.
        metrics: dict of names to values (numbers or text) that may be public.
        public_loss: losses in the order of training, computed on public data.
        caveats: list of sentences.
    """

    name: str = ""
    description: str = ""
    version: str = ""
    owner: str = ""
    contact: str = ""
    license: str = ""
    intended_use: str = ""
    out_of_scope: str = ""
    training_data: str = ""
    factors: str = ""
    metrics: dict = dataclasses.field(default_factory=dict)
    public_loss: tuple = ()
    caveats: tuple = ()

    @classmethod
    def from_toml(cls, text: str) -> About:
        """Reads the arguments from a TOML document.

        Raises:
            ValueError: if it is no TOML, or a name or a type is not one of the arguments'.
        """
        given = tomllib.loads(text)
        defaults = {field.name: getattr(cls(), field.name) for field in dataclasses.fields(cls)}
        for name, value in given.items():
            if name not in defaults:
                raise ValueError(
                    f"A model card has no entry {name!r}. Known entries: {', '.join(defaults)}"
                )
            wanted = {str: str, dict: dict, tuple: list}[type(defaults[name])]
            if not isinstance(value, wanted):
                raise ValueError(
                    f"Entry {name!r} of a model card must be a {wanted.__name__}. Received: "
                    f"{value!r}"
                )
        for loss in given.get("public_loss", ()):
            if not isinstance(loss, (int, float)) or not math.isfinite(loss):
                raise ValueError(f"Entry 'public_loss' must hold numbers. Received: {loss!r}")
        return cls(**given)
