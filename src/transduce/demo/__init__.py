"""The embedded default: a generated corpus and the steps of `transduce demo`."""
