"""The stages on ONNX Runtime.

``providers`` chooses where to compute and makes sessions, ``gpu_libraries`` loads NVIDIA's libraries and compares their
versions, ``sessions`` caches sessions, ``buffers`` holds arrays on the host or device, ``kv_cache`` and ``decoder`` run
the autoregressive network, ``tensorrt`` configures TensorRT's engines, and ``backend`` joins them.
"""
