"""The stages on ONNX Runtime.

``providers`` chooses where to compute and makes sessions, ``sessions`` caches them, with TensorRT's engines, and binds
their calls to tensors, ``decoder`` runs the autoregressive network, and ``backend`` joins them.
"""
