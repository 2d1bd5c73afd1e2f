"""The playground without a server: ONNX Runtime Web answers in the browser as the service does."""
