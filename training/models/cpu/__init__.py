"""Faster forms of the networks' layers, for training on a CPU."""
