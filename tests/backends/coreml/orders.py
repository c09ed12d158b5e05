"""Order the stand-in for coremltools' native module to fail, and read the log of its calls.

Orders and log are files of the folder that the environment variable ``FOLDER`` names, so child processes share them.
"""

import json
import os
import signal
import time
from dataclasses import asdict, dataclass
from pathlib import Path

FOLDER = "ANE_NATIVE_STAND_IN"  # environment variable that names the folder with the orders and the log


@dataclass(frozen=True)
class Order:
    """A call that must fail.

    Attributes:
        call: "compile", "load", "predict" or "plan". function, units: only of these; None: of all.
        how: "refuse" with ``message``; "nan" outputs; "off": outputs 5 % too large; "stale": from the 100th prediction
            on, the caches of the one before; "forget" what is written to a state; "slow"; "hang"; "kill" this process,
            as macOS does without memory; "memory": raise MemoryError.
    """

    call: str
    how: str = "refuse"
    function: str | None = None
    units: str | None = None
    message: str = "Error in building plan."


class StandIn:
    """The orders and the log of the simulated machine in ``folder``."""

    def __init__(self, folder: Path):
        self.folder = folder

    def order(self, *orders: Order) -> None:
        (self.folder / "orders.json").write_text(json.dumps([asdict(order) for order in orders]))

    @property
    def log(self) -> list[str]:
        """A line a call: "compile PACKAGE", "load FUNCTION UNITS", "predict FUNCTION UNITS", "plan FUNCTION UNITS"."""
        return [line for line in self._lines() if not line.startswith(("moved ", "wrote "))]

    @property
    def moved(self) -> int:
        """Bytes of all arrays that were handed over and returned, as the binding has them: float32 and int32."""
        return self._sum("moved ")

    @property
    def written(self) -> int:
        """Bytes of all compiled models."""
        return self._sum("wrote ")

    def _sum(self, start: str) -> int:
        return sum(int(line.split()[1]) for line in self._lines() if line.startswith(start))

    def _lines(self) -> list[str]:
        path = self.folder / "log"
        return path.read_text().splitlines() if path.exists() else []

    def note(self, line: str) -> None:
        with (self.folder / "log").open("a") as log:
            log.write(line + "\n")

    def count(self, start: str) -> int:
        return sum(line.startswith(start) for line in self.log)

    def obey(self, call: str, function: str, units: str = "") -> str:
        """Write the call into the log and carry out its order; "nan" and "forget" are left to the caller."""
        self.note(f"{call} {function} {units}".rstrip())
        path = self.folder / "orders.json"
        for order in (Order(**content) for content in (json.loads(path.read_text()) if path.exists() else [])):
            if order.call == call and order.function in (None, function) and order.units in (None, units):
                if order.how == "refuse":
                    raise RuntimeError(f'{{\n    NSLocalizedDescription = "{order.message}";\n}}')
                if order.how == "hang":
                    time.sleep(3600)
                if order.how == "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                if order.how == "memory":
                    raise MemoryError
                return order.how
        return ""


def here() -> StandIn:
    return StandIn(Path(os.environ[FOLDER]))
