"""Run the stages on ONNX Runtime.

``providers`` chooses where to compute and makes sessions. ``sessions`` caches them and binds their calls to tensors.
``engines`` describes TensorRT's engines. ``decoder`` runs the autoregressive network, and ``backend`` joins them.
"""
