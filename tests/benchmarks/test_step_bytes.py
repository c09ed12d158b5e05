"""What ``python -m benchmarks step-bytes`` counts is what Core ML's binding is handed."""

# ruff: noqa: F811  fixtures are imported

from collections import Counter

import numpy as np
import pytest

from ane.backends.coreml.runtime import CoreMLRuntime
from ane.backends.packaged.decoder import PackagedDecoder
from ane.backends.packaged.functions import PackageFunction
from benchmarks.step_bytes import CountedFunction
from converters.coreml.graph import Style
from converters.coreml.merge import merge
from converters.tortoise import autoregressive
from tests.backends.coreml.mac_fixtures import mac, unguarded_mac  # noqa: F401
from tests.backends.packaged.packages import reference_network

LANES, STEPS = 1, 30


@pytest.fixture(scope="module")
def functions(tmp_path_factory: pytest.TempPathFactory) -> list[PackageFunction]:
    network, folder = reference_network("autoregressive"), tmp_path_factory.mktemp("functions")
    graphs = [autoregressive.step(network, 4, 32), autoregressive.step(network, 4, 64),
              autoregressive.step(network, 4, 32, "state", capacity=64),
              autoregressive.step(network, 4, 64, "state", capacity=64),
              autoregressive.decoder_graphs(network, 1.0).store(64)]
    paths = {graph.name: folder / f"{graph.name}.mlpackage" for graph in graphs}
    for graph in graphs:
        graph.build(Style()).save(str(paths[graph.name]))
    merge(paths.items(), folder / "all.mlpackage")
    return [PackageFunction(None, folder / "all.mlpackage", graph.name, graph.bucket, "CPU_ONLY", graph.kind)
            for graph in graphs]


def decode(functions: list[PackageFunction], kind: str) -> None:
    shape = reference_network("autoregressive").config.decoder_shape
    decoder = PackagedDecoder([], [one for one in functions if one.kind == kind],
                              [one for one in functions if one.kind == "store"], LANES, STEPS,
                              (shape.layers, shape.heads, shape.head_width), 1.0, np.float16)
    decoder.prefill(np.ones((6, shape.width), np.float32))
    for position in range(STEPS):
        decoder.step(np.ones((LANES, 1, shape.width), np.float32), np.full(LANES, position))


@pytest.mark.parametrize("kind", ["step", "state"])
def test_the_bytes_handed_over_are_those_of_the_binding(mac, functions, kind):
    counts, runtime, real = Counter(), CoreMLRuntime(), []
    for function in functions:
        function._loaded = CountedFunction(function.package, counts, function.name)
        real.append(PackageFunction(runtime, function.package, function.name, function.bucket, "CPU_ONLY",
                                    function.kind))
    decode(functions, kind)
    decode(real, kind)
    assert mac.count("predict ") == counts["calls"]
    integers = counts["integers"]
    assert mac.moved - integers == counts["handed over"] // 6 * 4       # 4 of the 6 bytes of each value
    assert (integers > 0) == (kind == "state")
