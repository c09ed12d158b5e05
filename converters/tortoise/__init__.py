"""The networks of Tortoise, re-laid for the Neural Engine and for ONNX."""
