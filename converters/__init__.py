"""What makes Core ML and ONNX models out of the networks of `ane`."""
