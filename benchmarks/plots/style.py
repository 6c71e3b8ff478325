"""How plots look on light and dark pages, and the digest of its data that each PNG carries."""

import dataclasses
import hashlib
import inspect
import json
import pathlib
from collections.abc import Callable

ROOT = pathlib.Path(__file__).resolve().parents[2]
IMAGES = ROOT / "docs" / "images"
#: tfdp always has `tfdp`; `a`, `b` and `c` differ from it and from each other for the colour-blind,
#: too, and plots give each of them a marker of its own.
COLORS = {
    "light": {"ink": "#1f2328", "muted": "#59636e", "grid": "#d1d9e0", "tfdp": "#00796b",
              "a": "#b35900", "b": "#5b50c8", "c": "#a3386e"},
    "dark": {"ink": "#e6edf3", "muted": "#9ba3ad", "grid": "#444c56", "tfdp": "#2dd4bf",
             "a": "#f0a35e", "b": "#aaa6ff", "c": "#f08cbf"},
}  # fmt: skip
WIDTH = 6.4  # inches: of a width of 420 pixels, type of 13 points takes 12 pixels


@dataclasses.dataclass(frozen=True)
class Plot:
    """One plot. `data()` reads the JSON; `draw(figure, data, colors)`; `alt(data)` says it."""

    name: str
    data: Callable
    draw: Callable
    alt: Callable
    height: float = 4.0

    def path(self, theme):
        return IMAGES / f"{self.name}_{theme}.png"

    def digest(self):
        """Changes with the data and with the way in which they are drawn."""
        drawn = json.dumps(rounded(self.data()), sort_keys=True) + inspect.getsource(self.draw)
        return hashlib.sha256(f"{drawn} {self.height} {COLORS}".encode()).hexdigest()

    def picture(self, images, width):
        """Lines of HTML that show the plot, light or dark, from the folder `images`."""
        dark, light = (f"{images}/{self.path(theme).name}" for theme in ("dark", "light"))
        return [
            "<picture>",
            f'<source media="(prefers-color-scheme: dark)" srcset="{dark}">',
            f'<img width="{width}" alt="{self.alt(self.data())}" src="{light}">',
            "</picture>",
        ]


def rounded(data):
    """Six digits of every number: the last ones are those of a machine."""
    if isinstance(data, dict):
        return {str(name): rounded(value) for name, value in data.items()}
    if isinstance(data, list | tuple):
        return [rounded(value) for value in data]
    return float(f"{data:.6g}") if isinstance(data, float) else data


def stored_digest(path):
    from PIL import Image

    with Image.open(path) as image:
        return image.text.get("Digest")


def write(plot):
    """Draws `plot` for both kinds of page, unless both images are of these data already."""
    import matplotlib

    digest = plot.digest()
    paths = [plot.path(theme) for theme in COLORS]
    if all(path.exists() and stored_digest(path) == digest for path in paths):
        return
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    for theme, colors in COLORS.items():
        settings = {
            "font.size": 13, "axes.titlesize": 14, "axes.titleweight": "bold",
            "axes.titlelocation": "left", "axes.spines.top": False, "axes.spines.right": False,
            "text.color": colors["ink"], "axes.labelcolor": colors["ink"],
            "axes.edgecolor": colors["muted"], "xtick.color": colors["muted"],
            "ytick.color": colors["muted"], "xtick.labelcolor": colors["ink"],
            "ytick.labelcolor": colors["ink"], "grid.color": colors["grid"],
            "lines.linewidth": 2.2, "lines.markersize": 8, "axes.axisbelow": True,
        }  # fmt: skip
        with plt.rc_context(settings):
            figure = plt.figure(figsize=(WIDTH, plot.height), layout="constrained")
            plot.draw(figure, plot.data(), colors)
            metadata = {"Digest": digest, "Software": None}
            figure.savefig(plot.path(theme), dpi=150, transparent=True, metadata=metadata)
            plt.close(figure)


def title(figure, text):
    """A title over the whole figure: long labels of rows do not push it aside."""
    figure.suptitle(text, x=0.01, ha="left", weight="bold", size=14)


def key(axes, entries, **where):
    """Names in the colours of what they name: [(label, color, marker)]."""
    handles = [
        axes.plot([], [], marker, color=color, linestyle="none", label=label)[0]
        for label, color, marker in entries
    ]
    axes.legend(
        handles=handles, frameon=False, handletextpad=0.1, columnspacing=0.9, borderpad=0,
        labelcolor="linecolor", **where,
    )  # fmt: skip


def rows_of(axes, names):
    """Names of rows at the left, the first on top, and thin lines along the numbers."""
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.grid(axis="x", linewidth=0.6)


def log_ticks(axis, values, text="{:g}"):
    """Ticks of a logarithmic axis, at these values alone."""
    axis.set_ticks(values, [text.format(value) for value in values])
    axis.set_minor_locator(_none())


def _none():
    from matplotlib.ticker import NullLocator

    return NullLocator()
