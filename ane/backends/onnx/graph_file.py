"""Run a model that consists of a single ONNX file on the CPU with ONNX Runtime, and make several calls in parallel."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np

from ane.backends.base import Backend, FunctionSet, check_inputs
from ane.backends.onnx.providers import CPU, make_session, onnx_errors, onnxruntime_module
from ane.bundles import Bundle
from ane.system.machine import usable_cores

T = TypeVar("T")
R = TypeVar("R")


class GraphFunction:
    """A loaded graph. Call it with the inputs by name, and it returns the outputs by name.

    Attributes:
        inputs: Type and shape of each input, by name.
        outputs: Names of the outputs.
        metadata: Metadata of the graph, as text, by name.
    """

    def __init__(self, graph: Path | bytes, name: str, threads: int | None):
        self.name = name
        with onnx_errors(f"load {name}", "download the model again"):
            self._session = make_session(graph, [CPU], threads)
        self.inputs = {value.name: (value.type, value.shape) for value in self._session.get_inputs()}
        self.outputs = [value.name for value in self._session.get_outputs()]
        self.metadata: dict[str, str] = self._session.get_modelmeta().custom_metadata_map

    def __call__(self, **inputs: np.ndarray) -> dict[str, np.ndarray]:
        with onnx_errors(f"run {self.name}", "download the model again"):
            return dict(zip(self.outputs, self._session.run(None, inputs), strict=True))


def load_graph_file(
    graph: Path | bytes, path: Path, title: str, extra: str, threads: int | None = None
) -> GraphFunction:
    """Load a graph into ONNX Runtime.

    Args:
        graph: Path of the file, or the content of the file.
        path: Path of the file, for messages.
        title: Name of the kind of model, for messages.
        extra: Extra of tortoise-ane that installs ONNX Runtime for this kind of model, for messages.
        threads: Number of CPU threads per call. ``None`` means ONNX Runtime's choice.

    Raises:
        UserError: The graph is damaged, or ONNX Runtime is not installed.
    """
    onnxruntime_module(title, f"'.[{extra}]'")
    return GraphFunction(graph, str(path), threads)


class GraphBackend(Backend):
    """Runs a model that consists of a single graph.

    ``run_all`` runs several calls at once, each on one thread. Such calls are faster than calls one after another with
    several threads each.

    Args:
        model: Bundle with the graph.
        threads: Number of CPU threads. ``None`` means as many as cores for several calls, and ONNX Runtime's choice for
            a single call.
    """

    name = "onnx:cpu"

    def __init__(self, model: Bundle, threads: int | None = None):
        self.model, self.threads = model, threads
        self._graphs: dict[int | None, GraphFunction] = {}

    def graph(self, threads: int | None) -> GraphFunction:
        """Load the graph so that a call uses this many threads, and return it.

        Raises:
            UserError: The graph is missing or damaged.
        """
        if threads not in self._graphs:
            path, family = self.model.file("graph"), self.model.family
            self._graphs[threads] = load_graph_file(path, path, family.title, family.extra, threads)
        return self._graphs[threads]

    def run(self, stage: str, **inputs: np.ndarray) -> np.ndarray:
        return self._run(stage, self.graph(self.threads), inputs)

    def run_all(self, stage: str, calls: Sequence[dict[str, np.ndarray]]) -> Iterator[np.ndarray]:
        workers = min(len(calls), self.threads or usable_cores())
        graph = self.graph(1 if workers > 1 else self.threads)
        return compute_in_order(partial(self._run, stage, graph), calls, workers)

    def _run(self, stage: str, graph: GraphFunction, inputs: dict[str, np.ndarray]) -> np.ndarray:
        declared = self.model.family.stages.calls[stage]
        check_inputs(stage, declared, inputs)
        return declared.packaged(FunctionSet(lambda kind: [graph], {}.__getitem__), stage, inputs)

    def load(self, *networks: str) -> None:
        self.graph(self.threads)

    def release(self, *networks: str) -> None:
        """Do nothing. The model is small, so it stays loaded."""


def compute_in_order(function: Callable[[T], R], items: Sequence[T], workers: int) -> Iterator[R]:
    """Call ``function`` for each item on ``workers`` threads, and yield the results in the order of the items.

    The threads work on the next ``workers`` items while the caller handles a result. The threads do not begin later
    items, because every item needs the memory of a call. If a call fails, or the caller closes the generator, the
    threads begin no further items.
    """
    if workers == 1 or len(items) < 2:
        yield from map(function, items)
        return
    # every call has a separate pool, because a shared pool could wait forever if ``function`` itself called this
    # function
    with ThreadPoolExecutor(workers, thread_name_prefix="chunk") as pool:
        ahead: deque[Future[R]] = deque(pool.submit(function, item) for item in items[:workers])
        try:
            for item in items[workers:]:
                result = ahead.popleft().result()
                ahead.append(pool.submit(function, item))
                yield result
            while ahead:
                yield ahead.popleft().result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
