"""New figures of matplotlib, which is an extra."""


def new_figure(width: float, height: float):
    """A matplotlib figure, in inches, that no window shows.

    Raises:
        ValueError: if matplotlib is missing.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ValueError(
            "Drawing needs matplotlib, which is not installed. Install it: "
            "pip install 'tfdp[plot]'."
        ) from error
    return Figure(figsize=(width, height), layout="constrained")
