"""The stages on ONNX Runtime.

``providers`` chooses where to compute, ``sessions`` loads graphs, ``buffers`` holds arrays on the host or device,
``kv_cache`` and ``decoder`` run the autoregressive network, ``tensorrt`` configures TensorRT's engines, and ``backend``
joins them.
"""
