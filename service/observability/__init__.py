"""Logs, metrics, traces, and the parts of a request's time."""
