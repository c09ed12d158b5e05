"""Convert networks to ONNX packages: export graphs, reduce their precision, and store shared weights once."""
