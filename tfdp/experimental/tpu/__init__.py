"""Tables in TPU embeddings, from layer to run. Tested with test doubles only."""
