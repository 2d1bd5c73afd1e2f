"""Several processes: workers for HTTP, pictures and JSON, and one engine process that has the models."""
