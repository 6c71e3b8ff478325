"""Draws the plots of the pages, with the library: python docs/plots.py (needs matplotlib)."""

import pathlib

from tfdp import cli

IMAGES = pathlib.Path(__file__).resolve().parent / "images"
TRAINING = ["--num-examples", "60000", "--epochs", "30", "--delta", "1e-6"]


def main():
    IMAGES.mkdir(exist_ok=True)
    cli.main(["plan", *TRAINING, "--epsilon", "3", "--plot", str(IMAGES / "plan.png")])
    cli.main(
        ["budget", *TRAINING, "--batch-size", "4096", "--epsilon", "1", "3", "8", "--plot",
         str(IMAGES / "budget.png")]
    )  # fmt: skip


if __name__ == "__main__":
    main()
