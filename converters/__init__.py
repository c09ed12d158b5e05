"""Convert the networks of ``ane`` to packages for Core ML and ONNX."""
