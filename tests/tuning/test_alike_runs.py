"""Runs of a tuning start alike, and leave the process as if they had not been."""

import random

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.src.utils import rng_utils

from tfdp._compat.process_state import count_names_from, name_counts
from tfdp.tuning.alike_runs import AlikeRuns


def draws():
    """Two numbers of every source of random numbers that a process shares."""
    return [  # the first starts anew after each tuning
        tuple(tf.random.uniform([2], seed=3).numpy()),
        (random.random(), random.random()),
        tuple(np.random.uniform(size=2)),
        tuple(keras.random.uniform([2]).numpy()),
        tuple(tf.random.uniform([2]).numpy()),
        tuple(tf.random.get_global_generator().uniform([2]).numpy()),
        tuple(keras.initializers.GlorotUniform()([2]).numpy()),
    ]


def a_run(layers=1):
    """Names and numbers of a run that draws and names as many layers."""
    assert rng_utils.get_random_seed() is None  # what Keras shuffles by
    return [keras.layers.Dense(1).name for _ in range(layers)], draws()


@pytest.fixture(autouse=True)
def seeded():
    """As after `keras.utils.set_random_seed`, and as if it had not been called."""
    keras.utils.set_random_seed(7)
    tf.random.set_global_generator(tf.random.Generator.from_seed(7))
    yield
    tf.random.set_seed(None)


def after(runs):
    """What is drawn and named after a tuning of as many runs, of which the second best is kept."""
    count_names_from({})
    keras.utils.set_random_seed(7)
    tf.random.set_global_generator(tf.random.Generator.from_seed(7))
    before = draws()
    if not runs:
        return before, draws(), None
    with AlikeRuns() as alike:
        for number in range(runs):
            alike.begin()
            a_run(layers=2 if number == 1 else 5)
            if number == 1:
                alike.keep()
    assert rng_utils.get_random_seed() == 7
    return before, draws(), keras.layers.Dense(1).name


@pytest.mark.thorough
def test_what_follows_a_tuning_does_not_tell_how_many_runs_there_were():
    assert after(2) == after(4)
    _, drawn, name = after(3)
    assert drawn[1:] == after(0)[1][1:]  # as if there had been none
    assert name == "dense_2"  # no layer of the best model has this name


@pytest.mark.thorough
def test_runs_have_the_same_names_and_random_numbers_that_no_seed_fixes():
    count_names_from({"dense": 3})
    seen = []
    for _ in range(2):
        keras.utils.set_random_seed(7)
        with AlikeRuns() as alike:
            for _ in range(2):
                alike.begin()
                seen.append(a_run())
    assert [names for names, _ in seen] == [["dense_3"]] * 4
    # Seeds of Keras have 1e9 values, two numbers 2^46: two meet with a probability below 1e-7.
    assert all(len(set(source)) == 4 for source in zip(*(drawn for _, drawn in seen), strict=True))


def test_a_tuning_that_fails_leaves_names_and_random_numbers_as_they_were():
    count_names_from({"dense": 3})
    state, expected = random.getstate(), name_counts()
    with pytest.raises(ZeroDivisionError), AlikeRuns() as alike:
        alike.begin()
        a_run()
        raise ZeroDivisionError
    assert random.getstate() == state and name_counts() == expected
