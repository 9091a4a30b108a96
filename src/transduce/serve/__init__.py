"""A model behind HTTP, on this machine alone."""
