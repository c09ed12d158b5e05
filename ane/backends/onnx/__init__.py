"""The stages on ONNX Runtime.

``providers`` chooses where to compute and makes sessions, ``gpu_libraries`` loads NVIDIA's libraries and compares their
versions, ``sessions`` caches sessions, ``buffers`` holds arrays and caches on the host or device, ``decoder`` runs the
autoregressive network, ``tensorrt`` configures TensorRT's engines, and ``backend`` joins them.
"""
