"""What a training step takes, by the scope of its graph and the API that makes it."""
