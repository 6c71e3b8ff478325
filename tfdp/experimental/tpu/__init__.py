"""Tables in TPU embeddings: the layer, the optimizer, the run. Tested with test doubles only."""
