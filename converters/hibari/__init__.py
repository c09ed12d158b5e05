"""hibari's network as Core ML graphs (``graphs``) and ONNX graphs, and the table of its functions (``functions``)."""
