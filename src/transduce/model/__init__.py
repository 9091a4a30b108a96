"""The model: the paper's section 3, its loss, and the cache for decoding."""
