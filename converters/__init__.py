"""Converts the networks of ``ane`` to packages of Core ML and ONNX."""
