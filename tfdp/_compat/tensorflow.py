"""TensorFlow: what has no public way."""


def inputs_of(dataset):
    """The datasets that a dataset was made from."""
    return dataset._inputs()


def shards_of_tables(embedding):
    """Dict of the names of a TPU embedding's tables to their parts, fetched from the TPU."""
    # Written to the hosts as for a checkpoint.
    embedding._retrieve_variables()
    return {name: held["parameters"].variables for name, held in embedding._variables.items()}
