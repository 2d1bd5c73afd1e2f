"""A bundle's graphs in ONNX Runtime, and the queue in front of them."""
