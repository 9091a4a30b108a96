"""Search: from a model to text."""
