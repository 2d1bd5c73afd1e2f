"""Faster forms of the layers for training on CUDA, in Triton; they compute what the plain ones do."""
