"""Noise by batch size at one ε, as `tfdp plan` prints it: what the page on batches shows.

python benchmarks/plan.py
"""

import argparse
import dataclasses
import json
import pathlib

from tfdp.accounting.planner import plan_training

SETTING = {"num_examples": 60_000, "epochs": 30, "epsilon": 3.0, "delta": 1e-6}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    results = pathlib.Path(__file__).parent / "results"
    parser.add_argument("--out", type=pathlib.Path, default=results / "plan.json")
    planned = [
        {**dataclasses.asdict(one), "step_noise": one.step_noise, "total_noise": one.total_noise}
        for one in plan_training(**SETTING)
    ]
    found = {"setting": SETTING, "planned": planned}
    parser.parse_args().out.write_text(json.dumps(found, indent=1) + "\n")
