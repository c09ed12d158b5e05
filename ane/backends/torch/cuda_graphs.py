"""Functions from buffers to buffers, which CUDA records as a graph and replays."""

from collections.abc import Callable, Hashable

import torch

# (key, function): runs a function that only uses tensors at fixed addresses. A key identifies the function.
StepRunner = Callable[[Hashable, Callable[[], None]], None]


def run_eagerly(key: Hashable, function: Callable[[], None]) -> None:
    function()


class CudaGraphRunner:
    """A ``StepRunner`` on CUDA: the first call with a key runs the function, later calls replay its CUDA graph.

    The first call is a regular step, and also the warm-up on a side stream that recording requires
    (https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs). All graphs share one memory pool for their
    intermediate results, which are not needed after a step.

    Args:
        stream: the side stream. All decoders should use the same one: cuBLAS keeps a workspace for every stream.
    """

    def __init__(self, stream: torch.cuda.Stream):
        self.device, self.stream = stream.device, stream
        self.pool = torch.cuda.graph_pool_handle()
        self.warm: set[Hashable] = set()
        self.graphs: dict[Hashable, torch.cuda.CUDAGraph] = {}

    def __call__(self, key: Hashable, function: Callable[[], None]) -> None:
        if key not in self.warm:
            current = torch.cuda.current_stream(self.device)
            self.stream.wait_stream(current)
            with torch.cuda.stream(self.stream):
                function()
            current.wait_stream(self.stream)
            self.warm.add(key)
            return
        if key not in self.graphs:
            self.graphs[key] = self._record(function)
        self.graphs[key].replay()

    def _record(self, function: Callable[[], None]) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(self.device), torch.cuda.graph(
                graph, pool=self.pool, stream=self.stream,
                capture_error_mode="thread_local"):         # other threads may use the GPU meanwhile
            function()
        return graph


class HostDeviceTensor:
    """A tensor on the device and one on the host, pinned so that copies are asynchronous; on the CPU they are one.

    After ``send`` do not write ``host``, and after ``fetch`` do not read it, before the stream is synchronized.
    """

    def __init__(self, device: torch.device, *shape: int, dtype: torch.dtype = torch.float32):
        self.device = torch.zeros(shape, dtype=dtype, device=device)
        self.host = self.device
        if device.type != "cpu":
            self.host = torch.zeros(shape, dtype=dtype, pin_memory=device.type == "cuda")

    def send(self) -> None:
        self.device.copy_(self.host, non_blocking=True)

    def fetch(self) -> None:
        self.host.copy_(self.device, non_blocking=True)
