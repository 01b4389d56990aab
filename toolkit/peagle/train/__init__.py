"""A head of the user's own: is it worth it, its training data, the training, and its result."""
