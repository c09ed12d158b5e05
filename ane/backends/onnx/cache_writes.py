"""Graphs that write rows into a cache with ScatterND, in place.

With its output bound to the memory of its input, ScatterND copies nothing and writes only those rows; with indices of
one number it copies nothing from the host either, so a recorded one can be replayed (onnxruntime 1.25 to 1.30:
core/providers/cuda/tensor/scatter_nd.cc and core/providers/cpu/tensor/scatter_nd.cc).
"""

from pathlib import Path
from typing import Any

import numpy as np

OPSET, IR_VERSION = 18, 8           # of the graph that writes rows
ROWS = "cache_rows"                 # input (layers, n, heads, T, 1) of a step that writes: where each row goes
# output of a step → the input, all rows of a cache, that it is written to, and the output bound to the same memory
CACHES = {"new_keys": ("key_cache", "written_keys"), "new_values": ("value_cache", "written_values")}


def row_writer_graph(dtype: np.dtype) -> bytes:
    """A graph that writes the rows ``source`` to the rows ``rows`` of ``target``."""
    from onnx import TensorProto, helper

    kind = helper.np_dtype_to_tensor_dtype(dtype)
    target, source = (helper.make_tensor_value_info(name, kind, [size, "width"])
                      for name, size in (("target", "rows"), ("source", "count")))
    rows = helper.make_tensor_value_info("rows", TensorProto.INT64, ["count", 1])
    written = helper.make_tensor_value_info("written", kind, ["rows", "width"])
    node = helper.make_node("ScatterND", ["target", "rows", "source"], ["written"])
    graph = helper.make_graph([node], "write", [target, rows, source], [written])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)],
                             ir_version=IR_VERSION).SerializeToString()


def writing_step_graph(path: Path) -> bytes:
    """The graph of a step, changed to write its new keys and values into the caches instead of returning them.

    A step may write before, between or after its reads, and run twice, as it does to be recorded: the mask hides the
    positions that it writes, and it takes the keys and values of its own columns from where it computes them.
    """
    import onnx
    from onnx import TensorProto, helper

    model = onnx.load(path, load_external_data=False)
    graph = model.graph
    returned: dict[str, Any] = {output.name: output for output in graph.output}
    new = {name: returned.pop(name) for name in CACHES}
    *axes, width = next(iter(new.values())).type.tensor_type.shape.dim
    sizes = [axis.dim_param or axis.dim_value for axis in axes]
    graph.input.append(helper.make_tensor_value_info(ROWS, TensorProto.INT64, [*sizes, 1]))
    for name, (cache, written) in CACHES.items():
        kind, shape = new[name].type.tensor_type.elem_type, ["cache_size", width.dim_value]
        graph.input.append(helper.make_tensor_value_info(cache, kind, shape))
        graph.node.append(helper.make_node("ScatterND", [cache, ROWS, name], [written]))
        returned[written] = helper.make_tensor_value_info(written, kind, shape)
    outputs = list(returned.values())
    del graph.output[:]
    graph.output.extend(outputs)
    return model.SerializeToString()
