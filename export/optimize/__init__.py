"""Graph rewrites that keep the outputs; numpy and onnx, no torch."""
