"""Test every row of `FUNCTIONS` on every engine: its form suits the engine, and its results are the reference's.

A test builds the packages of one network, and lints them. It calls each function with the probe of its row, on the
engine and on float32 torch, with three lengths up to the bucket. Stages get batches of two different rows.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from ane.backends.base import Backend
from ane.backends.mil import MilRuntime, Package
from ane.backends.mil.package import ProgramFunction
from ane.backends.onnx.backend import OnnxBackend
from ane.backends.onnx.providers import DEVICES
from ane.backends.packaged.backend import PackagedBackend
from ane.backends.packaged.functions import Runtime
from ane.bundles import Bundle
from ane.bundles.package_records import PackageFolder, PackageRecord
from ane.system.decibels import snr_db
from converters.coreml.coreml_package import write_package
from converters.function_table import all_functions
from converters.neural_engine import MAX_AXIS
from converters.proof.lint import REFUSED, lint
from converters.proof.parity import (
    called_by_probe,
    mean_snr_db,
    reference_backend,
    relative_error,
    row_of,
    threshold_of,
)
from tests import random_model
from tests.backends.packaged.packages import NEEDS_CORE_AI
from tests.converters import conformance_table as table
from tests.converters.conformance_table import (
    ARITHMETICS,
    CASES,
    CORE_AI,
    EXACT,
    NARROW,
    OPTIONS,
    OTHER_SIZES,
    PACKAGES,
)

LEAVING = "gather", "scatter", "transpose", "cast", "tile", "select"
MAY_LEAVE = {"univnet": "transpose"}  # op that a network may contain. A network computes UnivNet's kernels
RANK_4_ALONE = "diffusion", "conditioning_encoder", "contextual_embedder", "rlg_auto", "rlg_diffuser"
VARIED = ("columns", "latents", "frames", "positions", "symbols")  # names of the lengths that a bucket limits
# positions of a bucket that the row's probe leaves empty
UNFILLED = {"condition": 3, "denoise": 7, "clvp_text": 5, "clvp_speech": 5}
ONNX_LENGTHS = 9, 34, 150
# Largest errors of ONNX graphs, as a share of the largest value. UnivNet amplifies rounding: with random weights,
# torch's float32 differs from its float64 by 5e-4.
LARGEST_ERROR, UNIVNET_ERROR = 1e-4, 2e-3
BATCH_SLACK = 3.0  # dB by which a batch may fall short of the floor, which is for one row
Outputs = list[tuple[np.ndarray, np.ndarray]]  # for each output, the arrays of the reference and of the engine


class PairedRows:
    """A backend whose stages get a second row, which is the first one shifted. It keeps what they return."""

    def __init__(self, backend: Backend):
        self.backend, self.returned = backend, []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.backend, name)

    def run(self, stage: str, **inputs: np.ndarray) -> np.ndarray:
        pairs = {name: np.concatenate([array, np.roll(array, 1, axis=-1)]) for name, array in inputs.items()}
        self.returned.append(self.backend.run(stage, **pairs))
        return self.returned[-1][:1]


class Comparison(NamedTuple):
    """A package's functions on an engine, beside the reference."""

    model: Bundle
    package: PackageRecord
    reference: Backend
    engine: Callable[[str], Backend]

    def outputs(self, function: str, **lengths: int) -> tuple[Outputs, Outputs]:
        """Return the outputs of a function's probe, whose inputs nearly have these lengths, and those of its batches.

        The two rows of a guided pair are outputs of their own.
        """
        bucket = {**lengths_of(self.package, function), **lengths}
        both = [PairedRows(self.reference), PairedRows(self.engine(function))]
        row = row_of(self.package, function)
        returned = [row.probe(each, self.model, bucket, np.random.default_rng(0)) for each in both]
        if row.kind == "denoise":
            returned = [list(np.split(pair, len(pair))) for [pair] in returned]
        return list(zip(*returned, strict=True)), list(zip(*(each.returned for each in both), strict=True))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Bundle]:
    """``model(name)``: one of `MODELS`."""
    return cache(lambda name: table.MODELS[name](tmp_path_factory.mktemp("model")))


@pytest.fixture(scope="module")
def written(model, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[PackageRecord, Path]]:
    """``written(model, network, precision)``: a package, and the folder in which it is; both engines read the same."""

    @cache
    def write(name: str, network: str, precision: str) -> tuple[PackageRecord, Path]:
        folder = tmp_path_factory.mktemp("package")
        with table.clips_of(name):
            return write_package(model(name), network, replace(OPTIONS, precision=precision), folder), folder

    return write


def on_packages(model: Bundle, package: PackageRecord, folder: Path, runtime: Runtime) -> Comparison:
    """Each function without those that could be called in its place, as a step with its caches on the host."""
    reference, unpublished = reference_backend(model, keep=True), PackageFolder(folder, [package])

    def engine(function: str) -> Backend:
        only = called_by_probe(package, function)
        return PackagedBackend(model, runtime, reference, only=only, unpublished=unpublished)

    return Comparison(model, package, reference, cache(engine))


def lengths_of(package: PackageRecord, name: str) -> Mapping[str, int]:
    """The lengths of a function's bucket; of a graph of ONNX, which has none, those that it is probed with."""
    return row_of(package, name).onnx_lengths if package.format == "onnx" else package.functions[name].bucket


def varied(package: PackageRecord, name: str) -> tuple[str, int, int] | None:
    """The length that inputs of this function may vary in, its smallest and its largest value; None for none."""
    row, lengths = row_of(package, name), lengths_of(package, name)
    [length] = [length for length in VARIED if length in lengths][:1] or [""]
    fixed = row.bucket is None and package.format != "onnx"
    if fixed or not length or (row.bucket and row.bucket.unit == "slots"):
        return None
    unfilled = UNFILLED.get(row.kind)
    smallest = row.bucket.smallest if row.bucket else 1
    return length, smallest if unfilled is None else unfilled + 1, lengths[length] + (unfilled or 0)


def lengths_between(limits: tuple[int, int], others: Iterable[int] = ()) -> Iterable[int]:
    """The smallest and largest lengths, one between them, and those of ``others`` that are not too small."""
    return dict.fromkeys((*limits, sum(limits) // 2, *(length for length in others if length >= limits[0])))


def assert_near(compared: Comparison, function: str, column: str, floors: table.Floors, **lengths: int) -> None:
    """Assert that each output of a function reaches its floor."""
    outputs, batches = compared.outputs(function, **lengths)
    for index, pair in enumerate(outputs):
        unconditioned = index == 1 and function.startswith("denoise_2")
        floor = (table.UNCONDITIONED if unconditioned else floors).of(column)
        assert snr_db(*pair) >= floor, (function, column, index, lengths)
    for pair in batches:
        assert snr_db(*pair) >= floors.of(column) - BATCH_SLACK, (function, column, "batch", lengths)


def test_every_row_is_in_the_table() -> None:
    assert {row.network for row in all_functions()} == {network for _, network in CASES}


@pytest.mark.parametrize(("name", "network", "precision"), PACKAGES)
def test_a_function_has_the_engines_form_and_the_references_outputs(model, written, name, network, precision):
    package, folder = written(name, network, precision)
    program = Package(folder / package.path)
    assert not [broken for broken in lint(program) if broken.rule.severity == REFUSED]
    for function in package.functions:
        assert_fits_the_engine(program.function(function), precision, network)
    for column, arithmetic in ARITHMETICS[precision].items():
        compared = on_packages(model(name), package, folder, MilRuntime(arithmetic))
        for function, record in package.functions.items():
            floors = table.floors_of(name, network, record.kind)
            assert_near(compared, function, column, floors)
            if column == EXACT and (found := varied(package, function)):
                for length in lengths_between(found[1:]):
                    assert_near(compared, function, EXACT, floors, **{found[0]: length})


@NEEDS_CORE_AI
@pytest.mark.parametrize(("name", "network"), [case for case in CASES if case not in OTHER_SIZES])
def test_core_ai_computes_the_references_outputs(model, written, name, network):
    from ane.backends.coreai.runtime import CoreAIRuntime

    package, folder = written(name, network, "fp32")
    compared = on_packages(model(name), package, folder, CoreAIRuntime())
    for function, record in package.functions.items():
        assert_near(compared, function, CORE_AI, table.floors_of(name, network, record.kind))


@NEEDS_CORE_AI
@pytest.mark.parametrize("precision", ["8bit", "4bit"])
def test_compressed_weights_mean_the_same_to_core_ai(model, tmp_path, precision):
    from ane.backends.coreai.runtime import CoreAIRuntime

    bundle, options = model("tortoise"), replace(OPTIONS, precision=precision)
    package = write_package(bundle, "autoregressive", options, tmp_path, functions={"step_2_96"})
    ours, apples = (
        mean_snr_db(*zip(*on_packages(bundle, package, tmp_path, runtime).outputs("step_2_96")[0], strict=True))
        for runtime in (MilRuntime(), CoreAIRuntime())
    )
    assert abs(ours - apples) <= 0.5  # maximum difference in dB between two runtimes in float32


@pytest.mark.parametrize("network", list(random_model.CONFIGS))
def test_a_graph_of_onnx_has_the_references_outputs_at_any_length(onnx_packages, network):
    bundle, package = onnx_packages.model, onnx_packages.package(network)
    reference, unpublished = reference_backend(bundle, keep=True), PackageFolder(onnx_packages.folder, [package])
    on_cpu = OnnxBackend(bundle, DEVICES["cpu"], reference, threads=1, unpublished=unpublished)
    compared = Comparison(bundle, package, reference, lambda function: on_cpu)

    def check(function: str, **lengths: int) -> None:
        outputs = list(chain(*compared.outputs(function, **lengths)))
        assert min(snr_db(*pair) for pair in outputs) >= threshold_of(package, function, None), function
        largest = UNIVNET_ERROR if network == "univnet" else LARGEST_ERROR
        assert relative_error(*zip(*outputs, strict=True)) <= largest, function

    for function in package.functions:
        check(function)
        if found := varied(package, function):
            for length in lengths_between(found[1:], ONNX_LENGTHS):
                check(function, **{found[0]: length})


@pytest.mark.parametrize(
    ("changed", "network"),
    [*((table.outlying, network) for network in table.OUTLIERS), (table.quiet, "clvp")],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_no_value_overflows_or_underflows_in_half_precision(tmp_path, changed, network):
    bundle = table.random_tortoise(tmp_path, changed)
    with table.clips_of("other clips"):
        package = write_package(bundle, network, replace(OPTIONS, caches=("io",)), tmp_path)
    compared = on_packages(bundle, package, tmp_path, MilRuntime(ARITHMETICS["fp16"][NARROW]))
    for function in package.functions:
        for index, pair in enumerate(chain(*compared.outputs(function))):
            for loudest in (np.inf, 10):  # values above 10 must not hide errors of the others
                decibels = snr_db(*(np.clip(output, -loudest, loudest) for output in pair))
                assert decibels >= table.OUTLYING.get(network, 50), (function, index, loudest)


def assert_fits_the_engine(function: ProgramFunction, precision: str, network: str) -> None:
    """Assert that a function has values of up to four axes, none too long, and no operation that leaves the engine."""
    types = [type for op in function.ops for type in op.outputs.values()]
    ranks = {len(type.shape) for type in types}
    assert ranks == {4} if network in RANK_4_ALONE else max(ranks) <= 4
    assert max(max(type.shape, default=1) for type in types) <= MAX_AXIS
    dtypes = {type.dtype for type in (*function.inputs.values(), *function.outputs.values())}
    assert dtypes <= {precision, *(("int32",) if function.states else ())}
    # a state is in fp16, and the columns are in float32
    allowed = "cast" if function.states and precision == "fp32" else MAY_LEAVE.get(network)
    assert {op.type for op in function.ops if op.type.startswith(LEAVING)} <= {allowed}
    assert all("output_shape" in op.arguments for op in function.ops if op.type == "conv_transpose")
