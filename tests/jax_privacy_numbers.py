"""What JAX-Privacy 2.0.0 computes for strategies that tfdp has as well.

Of `jax_privacy.matrix_factorization.toeplitz`, in float64: `inverse_coef` and the root of
`minsep_sensitivity_squared`, for coefficients of C₀ of `optimal_max_error_strategy_coefs(64)`,
`optimize_banded_toeplitz(60, bands)`, and 0.9^t cut off after twelve.
"""

#: name -> (steps, first column of C₀ or None for that of the square root, first six of M's)
STRATEGIES = {
    "square root": (64, None, (
        1.0, -0.5, -0.125, -0.0625,
        -0.0390625, -0.02734375,
    )),
    "banded, 4": (60, (
        0.7118339300027, 0.473222948466319, 0.395127587258373, 0.336491733819915,
    ), (
        1.40482204886779, -0.93391731415948, -0.158931510423743, -0.0400156170165608,
        0.556295467408807, -0.272481205833216,
    )),
    "banded, 8": (60, (
        0.681409697226552, 0.39774814953958, 0.322493129260201, 0.281105273503268,
        0.252058351422796, 0.228775733976798, 0.208167881494755, 0.187748834849806,
    ), (
        1.46754588916207, -0.856626584790972, -0.194525889081576, -0.0864478278410217,
        -0.0469427143968261, -0.0272766027667937,
    )),
    "geometric": (40, tuple(0.9**t for t in range(12)), (
        1.0, -0.9, 0.0, 0.0,
        0.0, 0.0,
    )),
}  # fmt: skip

#: (strategy, participations, min_separation, sensitivity)
SETTINGS = [
    ("square root", 1, 1, 1.54558989007286),
    ("square root", 4, 16, 3.96062026814365),
    ("square root", 3, 10, 3.5208200015946),
    ("square root", 64, 1, 51.2656402074226),
    ("banded, 4", 1, 1, 1),
    ("banded, 4", 3, 20, 1.73205080756888),
    ("banded, 8", 3, 20, 1.73205080756888),
    ("banded, 8", 12, 5, 4.29561083289388),
    ("geometric", 1, 1, 2.20075771272572),
    ("geometric", 5, 7, 6.11011605051402),
]
