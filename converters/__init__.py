"""Convert the networks of ``ane`` to files for other engines: Core ML and ONNX packages, Swift, and ggml."""
