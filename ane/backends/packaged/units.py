"""On which compute units each function of a package runs; it changes for a function alone when an engine refuses it."""

from ane.backends.packaged.functions import EngineRefusalError
from ane.bundles.packages import COMPUTE_UNITS, PackageRecord
from ane.system.errors import UserError

CPU, GPU, NEURAL_ENGINE, ALL = COMPUTE_UNITS
NEXT_UNITS = {ALL: GPU, NEURAL_ENGINE: GPU, GPU: CPU}       # refused compute units → what is tried then
# kinds of functions that share what they compute → the kind that does the same at once, on the better units
SAME_WORK = {("sample",): "denoise", ("state", "store"): "step"}


class FunctionUnits:
    """The compute units of a package's functions.

    Attributes:
        by_function: name → compute units; functions that are no longer used are missing.
    """

    def __init__(self, package: PackageRecord, units: str):
        self.package = package
        self.by_function = dict.fromkeys(package.functions, units)

    def of_kind(self, *kinds: str) -> list[str]:
        """The functions of these kinds that are used."""
        return [name for name in self.by_function if self.package.functions[name].kind in kinds]

    def replaces_state(self, error: UserError) -> bool:
        """Whether what was refused needs a state, and the host can keep the cache instead."""
        name = getattr(error, "function", "")
        return name in self.of_kind("state", "store") and bool(self.of_kind("step"))

    def refuse(self, error: UserError) -> str:
        """Choose what replaces the function that an engine refused: in words, or "" if nothing of the package does."""
        name = error.function if isinstance(error, EngineRefusalError) and not error.everywhere else ""
        if name not in self.by_function:
            return ""
        kind = self.package.functions[name].kind
        kinds, instead = next(((kinds, other) for kinds, other in SAME_WORK.items() if kind in kinds), ((), ""))
        if self.of_kind(instead):
            for unused in self.of_kind(*kinds):
                del self.by_function[unused]
            return f"Running {self.of_kind(instead)[0]} and its like on {self.by_function[self.of_kind(instead)[0]]}"
        units = NEXT_UNITS.get(self.by_function[name])
        if units is None:
            return ""
        moved = self.of_kind(*kinds) or [name]              # functions of one state run on the same units
        self.by_function |= dict.fromkeys(moved, units)
        return f"Running {' and '.join(moved)} on {units}"
