"""Convolutions on CUDA in full float32.

By default torch lets cuDNN round the factors of float32 convolutions to TF32 (10 bits of mantissa), which is audible
in a vocoder; products of matrices are float32. (https://docs.pytorch.org/docs/stable/notes/cuda.html#tf32-on-ampere)
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class ConvolutionPrecision:
    """torch's precision of float32 convolutions, which all threads of the process share.

    ``torch.backends.cudnn.flags`` would set other flags too, and raises an error in a program that has used the newer
    setting of each operator (``torch.backends.cudnn.conv.fp32_precision``, since torch 2.9).
    """

    def __init__(self):
        self._lock, self._calls, self._before = threading.Lock(), 0, None

    @contextmanager
    def full(self) -> Iterator[None]:
        """Convolutions inside the block are full float32; after the last block of all threads, they are as before."""
        with self._lock:
            if not self._calls:
                self._before = self._set("ieee")
            self._calls += 1
        try:
            yield
        finally:
            with self._lock:
                self._calls -= 1
                if not self._calls:
                    self._set(self._before)

    def _set(self, precision: str | bool) -> str | bool:
        """Set the precision and return the one before: of the newer setting a name, of the older one whether TF32."""
        cudnn = torch.backends.cudnn
        if hasattr(cudnn, "conv"):
            before, cudnn.conv.fp32_precision = cudnn.conv.fp32_precision, precision
        else:
            before, cudnn.allow_tf32 = cudnn.allow_tf32, precision is True
        return before


convolutions = ConvolutionPrecision()       # one for the process, as the setting is
