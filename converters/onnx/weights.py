"""Stores the weights of a package's graphs in one file, each tensor once."""

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import onnx_ir

WEIGHTS_FILE = "weights.bin"
ALIGNMENT = 4096        # ONNX Runtime memory-maps tensors that begin at a page boundary, and reads others
MIN_BYTES = 1024        # smaller tensors stay in the graph


class WeightFile:
    """Moves tensors of graphs to ``folder``/weights.bin and makes the graphs refer to them."""

    def __init__(self, folder: Path):
        self.folder, self.offsets = folder, {}
        (folder / WEIGHTS_FILE).touch()

    def move(self, model: "onnx_ir.Model") -> None:
        """Move the graph's large tensors into the file; equal ones are written once."""
        import onnx_ir as ir

        for value in model.graph.initializers.values():
            tensor = value.const_value
            if tensor is not None and tensor.nbytes >= MIN_BYTES:
                offset = self._write(tensor)
                value.const_value = ir.ExternalTensor(WEIGHTS_FILE, offset, tensor.nbytes, tensor.dtype,
                                                      shape=tensor.shape, name=value.name, base_dir=self.folder)

    def _write(self, tensor: Any) -> int:
        data = tensor.tobytes()
        key = hashlib.sha256(data).digest(), len(data)
        if key not in self.offsets:
            with (self.folder / WEIGHTS_FILE).open("ab") as file:
                end = file.seek(0, os.SEEK_END)
                file.write(bytes(-end % ALIGNMENT))
                self.offsets[key] = file.tell()
                file.write(data)
        return self.offsets[key]
