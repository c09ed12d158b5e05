"""Read from Core ML's compute plan which device it would run each operation of a package on (on a Mac)."""

import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ane.system.checked import stored_record
from ane.system.errors import UserError
from ane.system.files import write_json

if TYPE_CHECKING:
    from ane.backends.mil.package import Package

NEURAL_ENGINE = "Neural Engine"


@dataclass
class OffloadedGroup:
    """Operations of one type that Core ML would run outside the Neural Engine, all on the same device.

    Attributes:
        op: Type of the operations.
        device: Device that would run the operations.
        supported: Devices that could run the operations.
        example: Name of a tensor that one of the operations computes.
        count: Number of operations.
        cost: Share of these operations, all together, in the function's estimated cost.
    """

    op: str
    device: str
    supported: tuple[str, ...]
    example: str
    count: int = 0
    cost: float = 0.0

    @property
    def reason(self) -> str:
        if NEURAL_ENGINE in self.supported:
            return f"the {NEURAL_ENGINE} could too"
        return f"only {' and '.join(self.supported) or 'an unknown device'} can"


@dataclass
class Placement:
    """The devices on which Core ML would run a function's operations. Constants do not count as operations.

    Attributes:
        ops: Number of operations by device.
        costs: Share of the estimated cost by device.
        elsewhere: The operations that are not on the Neural Engine.
        unknown: Number of operations for which Core ML names no device.
    """

    ops: dict[str, int] = field(default_factory=dict)
    costs: dict[str, float] = field(default_factory=dict)
    elsewhere: list[OffloadedGroup] = field(default_factory=list)
    unknown: int = 0

    def share(self, cost: float) -> str:
        """Format a cost as a percentage of the function's whole cost."""
        return f"{cost / total:.1%}" if (total := sum(self.costs.values())) else "unknown"


def placement(compute_plan: Any, function: str) -> Placement | None:
    """Read a function's placement from coremltools' MLComputePlan. Return ``None`` if the plan lacks the function."""
    functions = compute_plan.model_structure.program.functions
    if function not in functions:
        return None
    result = Placement()
    groups: dict = {}
    for operation in _operations(functions[function].block):
        kind = operation.operator_name.rpartition(".")[2]  # ios18.conv → conv
        if kind == "const" or kind.startswith("constexpr_"):
            continue
        usage = compute_plan.get_compute_device_usage_for_mlprogram_operation(operation)
        if usage is None:
            result.unknown += 1
            continue
        estimated = compute_plan.get_estimated_cost_for_mlprogram_operation(operation)
        cost = estimated.weight if estimated else 0.0
        device = _device(usage.preferred_compute_device)
        result.ops[device] = result.ops.get(device, 0) + 1
        result.costs[device] = result.costs.get(device, 0.0) + cost
        if device != NEURAL_ENGINE:
            supported = tuple(sorted({_device(supporter) for supporter in usage.supported_compute_devices}))
            name = operation.outputs[0].name if operation.outputs else kind
            group = groups.setdefault((kind, device, supported), OffloadedGroup(kind, device, supported, name))
            group.count += 1
            group.cost += cost
    result.elsewhere = sorted(groups.values(), key=lambda group: (-group.cost, -group.count))
    return result


def _operations(block: Any) -> Iterator[Any]:
    for operation in block.operations:
        yield operation
        for inner in operation.blocks:
            yield from _operations(inner)


def _device(device: Any) -> str:
    """Return the kind of a device from the name of its class in coremltools, such as MLNeuralEngineComputeDevice."""
    for part, name in (("NeuralEngine", NEURAL_ENGINE), ("GPU", "GPU"), ("CPU", "CPU")):
        if part in type(device).__name__:
            return name
    return type(device).__name__


def function_placement(package: "Package", units: str, name: str) -> Placement | None:
    """Compile a function and read on which processors Core ML plans to run its operations. Works only on macOS.

    Core ML plans only the default function of a package, and coremltools cannot name another function. So the function
    is first copied to a separate package. The plan is cached for this Mac and its build of macOS. Returns ``None`` if
    Core ML has no plan.

    Raises:
        UserError: This is not a Mac, or Core ML refuses the function.
    """
    from ane.backends.coreml.compiled import extract_function, file_about
    from ane.backends.coreml.tools import CoreMLTools, error_summary
    from converters.coreml.graph import quiet

    with quiet():
        import coremltools
        from coremltools.models.compute_plan import MLComputePlan

    toolkit = CoreMLTools()
    cached_file = file_about(package.path, toolkit.machine(), f"placement-{name}-{units}")
    cached = stored_record(Placement, cached_file)
    if cached is not None:
        return cached
    with tempfile.TemporaryDirectory() as folder:
        alone, compiled = Path(folder) / f"{name}.mlpackage", Path(folder) / f"{name}.mlmodelc"
        try:
            extract_function(package.path, name, alone)
            toolkit.compile(alone, compiled)
            compute_plan = MLComputePlan.load_from_path(str(compiled), coremltools.ComputeUnit[units])
        except (RuntimeError, OSError) as error:
            raise UserError(f"Core ML has no plan for {name} of {package.path}: {error_summary(error)}") from error
    result = placement(compute_plan, "main")
    if result is not None:
        write_json(cached_file, asdict(result))
    return result
