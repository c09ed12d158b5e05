"""The stages on ONNX Runtime.

``providers`` chooses where to compute and makes sessions, ``sessions`` caches them and binds their calls to tensors,
``decoder`` runs the autoregressive network, ``tensorrt`` configures TensorRT's engines, and ``backend`` joins them.
"""
