"""Build Tortoise's networks as Core ML graphs (``buckets``) and as ONNX graphs (``onnx_graphs``)."""
