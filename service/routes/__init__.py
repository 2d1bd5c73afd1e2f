"""The routes: each with its answer."""
