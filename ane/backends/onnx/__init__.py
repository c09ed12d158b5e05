"""Run a model's ONNX packages on ONNX Runtime, on the CPU, on CUDA or on TensorRT.

``providers`` chooses the device and makes ONNX Runtime sessions (loaded graphs). ``sessions`` caches the sessions and
binds their calls to tensors. ``engines`` describes the engines of TensorRT. ``decoder`` runs the autoregressive
network. ``backend`` combines these modules.
"""
