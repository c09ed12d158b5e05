"""Whisper's networks as Core ML graphs (``graphs``) and as ONNX graphs (``onnx_graphs``)."""
