"""Where Core ML would run each operation of a package, from its compute plan (on a Mac)."""

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
    """Operations of a type that Core ML would not run on the Neural Engine, for one reason.

    Attributes:
        op: type of operation. device: where they would run. supported: where they could. example: name of a value.
        cost: share of the function's estimated cost.
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
    """Where Core ML would run a function. Constants do not run and are not counted.

    Attributes:
        ops: number of operations by device. costs: share of the estimated cost by device.
        elsewhere: the operations that are not on the Neural Engine.
        unknown: number of operations for which Core ML names no device.
    """

    ops: dict[str, int] = field(default_factory=dict)
    costs: dict[str, float] = field(default_factory=dict)
    elsewhere: list[OffloadedGroup] = field(default_factory=list)
    unknown: int = 0

    def share(self, cost: float) -> str:
        """A cost as a share of the whole."""
        return f"{cost / total:.1%}" if (total := sum(self.costs.values())) else "unknown"


def placement(compute_plan: Any, function: str) -> Placement | None:
    """The placement of a function in a compute plan (coremltools' MLComputePlan); None when the plan lacks it."""
    functions = compute_plan.model_structure.program.functions
    if function not in functions:
        return None
    found = Placement()
    groups: dict = {}
    for operation in _operations(functions[function].block):
        kind = operation.operator_name.rpartition(".")[2]  # ios18.conv → conv
        if kind == "const" or kind.startswith("constexpr_"):
            continue
        usage = compute_plan.get_compute_device_usage_for_mlprogram_operation(operation)
        if usage is None:
            found.unknown += 1
            continue
        estimated = compute_plan.get_estimated_cost_for_mlprogram_operation(operation)
        cost = estimated.weight if estimated else 0.0
        device = _device(usage.preferred_compute_device)
        found.ops[device] = found.ops.get(device, 0) + 1
        found.costs[device] = found.costs.get(device, 0.0) + cost
        if device != NEURAL_ENGINE:
            supported = tuple(sorted({_device(one) for one in usage.supported_compute_devices}))
            name = operation.outputs[0].name if operation.outputs else kind
            group = groups.setdefault((kind, device, supported), OffloadedGroup(kind, device, supported, name))
            group.count += 1
            group.cost += cost
    found.elsewhere = sorted(groups.values(), key=lambda group: (-group.cost, -group.count))
    return found


def _operations(block: Any) -> Iterator[Any]:
    for operation in block.operations:
        yield operation
        for inner in operation.blocks:
            yield from _operations(inner)


def _device(device: Any) -> str:
    """The kind of a device, by coremltools' class of it: MLNeuralEngineComputeDevice and so on."""
    for part, name in (("NeuralEngine", NEURAL_ENGINE), ("GPU", "GPU"), ("CPU", "CPU")):
        if part in type(device).__name__:
            return name
    return type(device).__name__


def function_placement(package: "Package", units: str, name: str) -> Placement | None:
    """Compile a function as a package of its own and read Core ML's plan of it; macOS only. None: it has no plan.

    Core ML plans the default function of a package only: coremltools passes no name of another. A plan is remembered
    for this Mac and its build of macOS, so that a plan of many functions can be interrupted, and a second is free.

    Raises:
        UserError: not on a Mac, or Core ML refuses the function.
    """
    from ane.backends.coreml.compiled import extract_function, file_about
    from ane.backends.coreml.tools import CoreMLTools, error_summary
    from converters.coreml.graph import quiet

    with quiet():
        import coremltools
        from coremltools.models.compute_plan import MLComputePlan

    toolkit = CoreMLTools()
    remembered = file_about(package.path, toolkit.machine(), f"placement-{name}-{units}")
    found = stored_record(Placement, remembered)
    if found is not None:
        return found
    with tempfile.TemporaryDirectory() as folder:
        alone, compiled = Path(folder) / f"{name}.mlpackage", Path(folder) / f"{name}.mlmodelc"
        try:
            extract_function(package.path, name, alone)
            toolkit.compile(alone, compiled)
            compute_plan = MLComputePlan.load_from_path(str(compiled), coremltools.ComputeUnit[units])
        except (RuntimeError, OSError) as error:
            raise UserError(f"Core ML has no plan for {name} of {package.path}: {error_summary(error)}") from error
    found = placement(compute_plan, "main")
    if found is not None:
        write_json(remembered, asdict(found))
    return found
