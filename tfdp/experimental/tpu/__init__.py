"""Tables in TPU embeddings, from layer to run; tested with doubles of TPUs alone."""
