"""Noise where persons are drawn, and where their records are drawn one by one, at equal rows.

At one ε, δ, number of persons and of steps, with the same expected number of rows in a step and
k records of everybody: σ of either sampling, calibrated. Writes JSON.

    python benchmarks/persons_or_records.py --out benchmarks/results/persons_or_records.json
"""

import argparse
import json
import math
import os

import record

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

PERSONS, STEPS, EPSILON, DELTA = 100_000, 2_000, 3.0, 1e-6
RECORDS = (1, 2, 5, 20, 100)
ROWS = (1_000, 10_000)


def measured(k, rows):
    import tfdp
    from tfdp.accounting import calibrate_noise_multiplier

    budget = tfdp.PrivacyBudget(EPSILON, DELTA)
    q = rows / (PERSONS * k)  # rows/k of n persons, or rows of n·k records: the same probability
    persons = calibrate_noise_multiplier(budget, q, STEPS)
    records = calibrate_noise_multiplier(budget, q, STEPS, max_records_per_unit=k)
    return {
        "records_of_a_person": k,
        "rows_of_a_step": rows,
        "sampling_probability": q,
        "persons_noise_multiplier": persons,
        "records_noise_multiplier": records,
        # Noise in units of a record's share of the mean gradient, of which a person's sum, clipped
        # to the norm C, is k times as much at most where they are alike, √k where unrelated.
        "records_noise": records / rows,
        "persons_noise_alike": persons * k / rows,
        "persons_noise_unrelated": persons * math.sqrt(k) / rows,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    args = record.parse(parser)
    result = record.Result(
        args.out, persons=PERSONS, steps=STEPS, epsilon=EPSILON, delta=DELTA, settings=[]
    )
    for rows in ROWS:
        for k in RECORDS:
            found = measured(k, rows)
            result["settings"].append(found)
            print(json.dumps(found), flush=True)
            result.write()


if __name__ == "__main__":
    main()
