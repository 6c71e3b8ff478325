"""Noise by batch size at one ε, as `tfdp plan` prints it: what the page on batches shows.

python benchmarks/plan.py --out benchmarks/results/plan.json
"""

import argparse
import dataclasses

import record

from tfdp.accounting.planner import plan_training

SETTING = {"num_examples": 60_000, "epochs": 30, "epsilon": 3.0, "delta": 1e-6}

if __name__ == "__main__":
    args = record.parse(argparse.ArgumentParser(description=__doc__.splitlines()[0]))
    planned = [
        {**dataclasses.asdict(one), "step_noise": one.step_noise, "total_noise": one.total_noise}
        for one in plan_training(**SETTING)
    ]
    record.Result(args.out, setting=SETTING, planned=planned).write()
