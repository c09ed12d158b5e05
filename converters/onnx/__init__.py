"""ONNX graphs of the networks in ``ane.networks``: what they compute, their precision, and the weights they share."""
