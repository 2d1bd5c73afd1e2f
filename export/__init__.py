"""Export: checkpoint in, bundle of static ONNX graphs out."""
