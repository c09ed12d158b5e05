"""The stages on ONNX Runtime.

``providers`` chooses where to compute and makes sessions, ``sessions`` caches them and binds their calls to tensors,
``engines`` has TensorRT's engines, ``decoder`` runs the autoregressive network, and ``backend`` joins them.
"""
