"""Convert networks to ONNX packages: export of graphs, precision, shared weights."""
