"""Measure how exactly each function of a package computes, compared with the PyTorch network in float32.

This exactness is called the function's parity. The same test inputs (the probe in the function's row of
``converters.function_table``) go to the package and to the PyTorch network. The interpreter runs Core ML functions, and
ONNX Runtime runs ONNX graphs on the CPU.

A Core ML package also gets golden cases, with which a Mac can check whether Core ML computes right
(``ane.backends.packaged.golden``). A golden case has the inputs of the last call that the probe made, because these
inputs are typical. The interpreter computes the expected outputs in float32.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from ane.backends.base import MASKED, Backend
from ane.backends.mil import Arithmetic, MilRuntime
from ane.backends.mil.package import Package
from ane.backends.onnx.backend import OnnxBackend
from ane.backends.onnx.providers import DEVICES
from ane.backends.packaged.backend import PackagedBackend
from ane.backends.packaged.golden import GoldenCase, narrowed, samples, widened, write_golden_cases
from ane.backends.torch.backend import TorchBackend
from ane.bundles import Bundle
from ane.bundles.package_records import FunctionRecord, PackageFolder, PackageRecord
from ane.system.decibels import snr_db
from ane.system.errors import UserError
from converters.function_table import ONNX_ERROR, ONNX_THRESHOLDS, THRESHOLDS, Function, functions_of
from converters.proof.activations import CallRecorder
from converters.proof.elements import MAX_SNR

# Keys under which bundle.json records the parity of a function. A Core ML function has dB for each of the interpreter's
# arithmetics (MATHS, ROUNDING, FLUSHED). An ONNX graph has dB (ON_CPU) and the relative error (ERROR)
MATHS, ROUNDING, FLUSHED = "fp32 maths", "fp16 rounding", "fp16 flushed"
ARITHMETICS = {MATHS: Arithmetic(), ROUNDING: Arithmetic(fp16=True), FLUSHED: Arithmetic(fp16=True, flush=True)}
FLUSHED_THRESHOLD = 45.0  # threshold in dB with FLUSHED, unless the threshold with ROUNDING is lower
ON_CPU, ERROR = "cpu", "error"
# In a golden case, a machine must reach the interpreter's dB in fp16 minus MACHINE_SLACK. Machines that compute right
# need this slack: Apple's Core AI in fp16 loses up to 11 dB (benchmarks/results/witnesses-demo.json). The requirement
# is at least MACHINE_FLOOR, because values that are 5 % too large already reach 26 dB. It is at most MOST_OF_A_PROBE,
# which any machine reaches in fp32.
MACHINE_SLACK, MACHINE_FLOOR, MOST_OF_A_PROBE = 12.0, 36.0, 60.0


def reference_backend(model: Bundle, keep: bool = False) -> TorchBackend:
    """Create the backend with which packages are compared: torch in float32, with its most exact operators."""
    return TorchBackend(model, "cpu", "fp32", keep=keep, exact=True)


def measure_parity(
    model: Bundle, package: PackageRecord, bundle: Path, progress: Callable[[str], None] = lambda function: None
) -> dict[str, FunctionRecord]:
    """Measure how exactly every function in a package computes. Write golden cases (tests) into a Core ML package.

    Args:
        model: The model with the PyTorch networks.
        package: Record of the package.
        bundle: Folder that holds the package.
        progress: Function that is called with the name of each function before it is measured.

    Returns:
        The records of the functions with their parity, by name.

    Raises:
        UserError: A function is below its threshold.
    """
    reference = reference_backend(model, keep=True)
    unpublished = PackageFolder(bundle, [package])
    engines = {
        name: MilRuntime(arithmetic)
        for name, arithmetic in ARITHMETICS.items()
        if arithmetic == Arithmetic() or package.precision != "fp32"
    }
    on_cpu = (
        OnnxBackend(model, DEVICES["cpu"], reference, unpublished=unpublished) if package.format == "onnx" else None
    )
    records: dict[str, FunctionRecord] = {}
    probes: dict[str, GoldenCase] = {}
    for name, function in package.functions.items():
        progress(name)
        expected = run_probe(reference, model, package, name)
        if on_cpu:
            outputs = run_probe(on_cpu, model, package, name)
            parity = {
                ON_CPU: round(mean_snr_db(expected, outputs), 1),
                ERROR: float(f"{relative_error(expected, outputs):.1e}"),
            }
        else:
            parity, probe = _interpreted(model, unpublished, name, expected, engines, reference)
            if probe is not None:
                probes[name] = probe
        records[name] = replace(function, parity=parity)
        check_threshold(package, name, records[name])
    if probes:
        write_golden_cases(bundle / package.path, probes)
    return records


def _interpreted(
    model: Bundle,
    unpublished: PackageFolder,
    name: str,
    expected: Sequence[np.ndarray],
    engines: Mapping[str, MilRuntime],
    reference: Backend,
) -> tuple[dict[str, float], GoldenCase | None]:
    """Run the test inputs of a Core ML function (its probe) on the interpreter, once for each arithmetic.

    Returns:
        The signal-to-noise ratio in dB by arithmetic, and the golden case. The golden case is ``None`` if the probe did
        not call the function.
    """
    recorder, parity, [package] = CallRecorder(engines[MATHS]), {}, unpublished.packages
    for arithmetic, engine in engines.items():
        backend = PackagedBackend(
            model,
            recorder if arithmetic == MATHS else engine,
            reference,
            only=called_by_probe(package, name),
            unpublished=unpublished,
        )
        parity[arithmetic] = round(mean_snr_db(expected, run_probe(backend, model, package, name)), 1)
    return parity, golden_probe(recorder, unpublished.path / package.path, name, package.precision != "fp32")


def row_of(package: PackageRecord, name: str) -> Function:
    """Return a function's row in the table of functions. Raises UserError if this version of ``ane`` has none."""
    kind = package.functions[name].kind
    known = ONNX_THRESHOLDS if package.format == "onnx" else THRESHOLDS
    row = functions_of(package.network, package.format).get(kind)
    if row is None or package.precision not in known:
        raise UserError(
            f"{package.path}, function {name}: {package.precision} {kind} is not supported: convert the "
            "model again, or update tortoise-ane"
        )
    return row


def run_probe(backend: Backend, model: Bundle, package: PackageRecord, name: str) -> list[np.ndarray]:
    """Call a package's function with its test inputs (its probe) on a backend, and return the outputs."""
    row = row_of(package, name)
    bucket = row.onnx_lengths if package.format == "onnx" else package.functions[name].bucket
    return row.probe(backend, model, bucket, np.random.default_rng(0))


def called_by_probe(package: PackageRecord, name: str) -> frozenset[str]:
    """Return the names of a function and of the other functions that its probe calls.

    A probe is a test run with fixed inputs. If the function has a state (a kv-cache inside Core ML), the probe calls
    only functions whose state has the same capacity, because they share the state.
    """
    needed, capacity = row_of(package, name).calls, package.functions[name].bucket.get("capacity")
    return frozenset(
        (
            name,
            *(
                other
                for other, record in package.functions.items()
                if record.kind in needed and capacity in (None, record.bucket.get("capacity", capacity))
            ),
        )
    )


def threshold_of(package: PackageRecord, name: str, arithmetic: str | None) -> float:
    """Return the dB that a function must reach with an arithmetic, ``MATHS``, ``ROUNDING`` or ``FLUSHED``.

    An ONNX graph has the same threshold with every arithmetic.

    Raises:
        UserError: This version of ``ane`` does not know the precision or the kind of function.
    """
    row = row_of(package, name)
    if package.format == "onnx":
        special = row.onnx_fp32 if package.precision == "fp32" else None
        return special[0] if special else ONNX_THRESHOLDS[package.precision]
    maths, rounding = row.thresholds.get(package.precision) or THRESHOLDS[package.precision]
    if arithmetic == MATHS or rounding is None:
        return maths
    return min(rounding, FLUSHED_THRESHOLD) if arithmetic == FLUSHED else rounding


def check_threshold(package: PackageRecord, name: str, record: FunctionRecord) -> None:
    """Raise UserError if a package's function is less exact than its threshold, or its relative error is too large."""
    where = f"{package.network}, function {name}, in {package.precision}"
    for key, value in record.parity.items():
        if key == ERROR:
            _, largest = row_of(package, name).onnx_fp32 or (0, ONNX_ERROR)
            if package.precision == "fp32" and not value <= largest:
                raise UserError(
                    f"{where}: an error of {value:.1e} of the largest value, above the threshold of "
                    f"{largest:.0e}. The package is not published"
                )
        elif not value >= (threshold := threshold_of(package, name, key)):
            raise UserError(
                f"{where} with {key}: {value} dB against float32, below the threshold of {threshold}. The package is "
                "not published: choose another precision. The same command reuses the packages that are done"
            )


def mean_snr_db(references: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> float:
    """Average the noise-to-signal ratios of several arrays, and return the mean as an SNR of at most ``MAX_SNR`` dB."""
    noise = [10 ** (-snr_db(reference, output) / 10) for reference, output in zip(references, outputs, strict=True)]
    return float(-10 * np.log10(max(np.mean(noise), 10 ** (-MAX_SNR / 10))))  # type: ignore[call-overload]


def relative_error(references: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> float:
    """Divide each array's largest error by the array's largest value, and return the largest quotient."""
    return max(
        float(np.abs(reference - output).max() / np.abs(reference).max())
        for reference, output in zip(references, outputs, strict=True)
    )


def largest_error(references: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> float:
    """Return the largest absolute error in any of the arrays."""
    return max(
        float(np.abs(reference.astype(np.float64) - output).max())
        for reference, output in zip(references, outputs, strict=True)
    )


# Golden cases


def golden_probe(recorder: CallRecorder, path: Path, name: str, fp16: bool) -> GoldenCase | None:
    """Make the golden case of a function from recorded calls. Return ``None`` if the function was not called.

    A golden case is a stored call with its expected outputs. The interpreter computes the outputs from the package's
    weights, which may be compressed. The case also has the SNR in dB that a machine must reach, which is derived from
    the interpreter's SNR.

    Args:
        recorder: The recorded calls.
        path: The package.
        name: Name of the function.
        fp16: Whether the function computes in fp16.
    """
    package = Package(path)
    calls = _calls(recorder, package, name)
    if not calls:
        return None
    rounded = []
    for called, inputs in calls:
        declared = package.function(called).inputs
        arrays = {
            key: array.astype({"fp16": np.float16, "int32": np.int32}.get(declared[key].dtype, np.float32))
            for key, array in inputs.items()
        }
        arrays = {key: widened(narrowed(array), array.shape) for key, array in arrays.items()}
        rounded.append((called, used_columns(arrays)))

    def last(arithmetic: Arithmetic) -> Mapping[str, np.ndarray]:
        engine = MilRuntime(arithmetic, {path: package})
        functions = {called: engine.load(path, called, "CPU_ONLY") for called, _ in rounded}
        state = functions[rounded[0][0]].make_state()
        for called, inputs in rounded:
            outputs = functions[called].predict(inputs, state)
        return outputs

    probe = GoldenCase(rounded, {key: samples(array) for key, array in last(Arithmetic()).items()}, 0.0)
    reached = [probe.decibels(last(ARITHMETICS[name])) for name in ((ROUNDING, FLUSHED) if fp16 else ())]
    demanded = min([MOST_OF_A_PROBE, *(dB - MACHINE_SLACK for dB in reached)])
    return GoldenCase(rounded, probe.expected, round(max(MACHINE_FLOOR, demanded), 1))


def used_columns(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Replace the unused columns in a decoder's inputs by copies of its first column. Return other inputs unchanged.

    An unused column attends to nothing, so its scores are about -10,000, where fp16 has no precision. The runtime never
    reads the outputs of such columns.
    """
    if "mask" not in inputs or "x" not in inputs:
        return dict(inputs)
    x, mask = inputs["x"].copy(), inputs["mask"].copy()
    unused = (mask[0, 0] <= MASKED).all(axis=-1) | ~x[0, :, 0].any(axis=0)
    x[..., unused], mask[:, :, unused] = x[..., :1], mask[:, :, :1]
    return {**inputs, "x": x, "mask": mask}


def _calls(recorder: CallRecorder, package: Package, name: str) -> list[tuple[str, Mapping[str, np.ndarray]]]:
    """Return all recorded calls that wrote to a function's state, and then the function's last call.

    If the function itself writes to the state, the last of the returned calls is the next call that reads the state.
    """
    if name in recorder.calls and not package.function(name).states:
        return [(name, recorder.calls[name].inputs)]
    for calls in reversed(recorder.on_state.values()):
        names = [called for called, _ in calls]
        if name in names:
            writes = [any(op.written_state for op in package.function(called).ops) for called in names]
            last = len(names) - 1 - names[::-1].index(name)
            if writes[last]:
                last = next((index for index in range(last, len(names)) if not writes[index]), last)
            return [call for index, call in enumerate(calls) if index == last or (writes[index] and index < last)]
    return []
