"""Build Whisper's networks as Core ML graphs and as ONNX graphs. ``whisper_functions`` lists the functions."""
