"""Converts the networks of ``ane`` to Core ML packages, ONNX packages and GGUF files."""
