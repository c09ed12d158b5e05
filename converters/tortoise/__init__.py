"""Build Tortoise's networks as Core ML graphs and as ONNX graphs. ``tortoise_functions`` lists the functions."""
