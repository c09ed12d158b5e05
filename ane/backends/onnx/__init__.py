"""The stages on ONNX Runtime: providers, sessions, caches that stay on the device, and TensorRT's engines."""
