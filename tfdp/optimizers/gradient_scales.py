"""Scales of gradients before clipping, one for each variable; they are public numbers."""

import numpy as np

from tfdp._validate import positive
from tfdp.data.provenance.origins import Origin

# Squares of scaled gradients that are finite in float32 then come from finite gradients.
_LARGEST = 1e6


def checked_scales(scales):
    """{end of a variable's path: its scale}, checked without a model.

    Raises:
        ValueError: for anything but a dict of paths to numbers from 1e-6 to 1e6, and for numbers
            that carry the charge of a release, which an optimizer cannot keep.
    """
    if scales is None:
        return None
    if not isinstance(scales, dict) or not all(isinstance(path, str) for path in scales):
        raise ValueError(
            "Argument `gradient_scales` must be a dict from paths of variables to scales. "
            f"Received: gradient_scales={scales!r}"
        )
    if Origin.of(scales):
        raise ValueError(
            "Argument `gradient_scales` must hold numbers that are public. These were made with a "
            "private release, whose charge an optimizer does not carry. Choose numbers that do "
            f"not depend on the records. Received: scales of {sorted(scales)}"
        )
    found = {}
    for path, scale in scales.items():
        name = f"gradient_scales[{path!r}]"
        if not 1 / _LARGEST <= positive(name, scale) <= _LARGEST:
            raise ValueError(f"Argument `{name}` must lie in [1e-6, 1e6]. Received: {scale}")
        found[path] = float(scale)
    return found


def scales_of(variables, scales):
    """The scale of each variable, 1 for those that are not named; None where none is.

    Args:
        variables: the trained variables.
        scales: as `checked_scales` returns it.

    Raises:
        ValueError: if a name is the end of no path of a trained variable, or of several.
    """
    if scales is None:
        return None
    paths, found, named = [variable.path for variable in variables], [1.0] * len(variables), {}
    # Editing the dict of an optimizer goes past its checks.
    for end, scale in checked_scales(scales).items():
        places = [i for i, path in enumerate(paths) if f"/{path}".endswith(f"/{end}")]
        if len(places) != 1:
            raise ValueError(
                "Argument `gradient_scales` must name trained variables by the ends of their "
                f"paths. Each name must be the end of exactly one path. Received: {end!r}, the end "
                f"of {len(places)} of the paths {paths}"
            )
        other = named.setdefault(places[0], end)
        if other != end:
            raise ValueError(
                "Argument `gradient_scales` must name each variable once. Received: "
                f"{other!r} and {end!r}, which are both the variable {paths[places[0]]!r}"
            )
        found[places[0]] = float(np.float32(scale))  # exact where gradients are multiplied by it
    return found


def bounds_of(variables, scales, clip_norm):
    """The longest gradient of each variable that clipping leaves whole, C/s.

    Args:
        variables, scales: as for `scales_of`.
        clip_norm: C.
    """
    found = scales_of(variables, scales)
    return [clip_norm / scale for scale in found or [1.0] * len(variables)]
