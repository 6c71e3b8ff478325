"""Which records of persons take part in a stream, so that nobody's come too often or too soon."""

import numpy as np


def separated(ids, batch_size, max_participations, min_separation):
    """Of each person, the first records whose steps are far enough apart, up to a number.

    Whether a record takes part follows from its place and from earlier records of its own person
    alone: those of others stay where they are if a person is blanked out.

    Args:
        ids: (n,) whose record each one is, in the order of the stream.
        batch_size: records of a step.
        max_participations: k, the most that are taken of one person.
        min_separation: g, the fewest steps from one to the next; at least 1.

    Returns:
        (n,) bool; private, as the ids are.
    """
    _, persons = np.unique(ids, return_inverse=True)
    order = np.argsort(persons, kind="stable")
    persons, steps = persons[order], order // batch_size
    # Increasing: a person's later steps, then those of the next person.
    keys = persons * (len(ids) // batch_size + 1) + steps
    taken = np.zeros(len(ids), bool)
    places = np.unique(persons, return_index=True)[1]  # the first record of each person
    for _ in range(max_participations):
        taken[order[places]] = True
        following = np.searchsorted(keys, keys[places] + min_separation)
        # Past the last one of a person lies the next person's first, from which others go on.
        goes_on = following < len(keys)
        goes_on[goes_on] = persons[following[goes_on]] == persons[places[goes_on]]
        places = following[goes_on]
        if not len(places):
            break
    return taken
