"""Serving: bundle in, answers over HTTP out. Never imports torch."""
