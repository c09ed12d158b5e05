"""Remember which engines `ane bench` found fastest for a bundle on this machine. The backend "auto" uses them."""

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ane.system.checked import read_record, validated
from ane.system.errors import UserError
from ane.system.files import read_json, write_json
from ane.system.machine import processor_name, system_version
from ane.system.paths import cache_dir

if TYPE_CHECKING:
    from ane.bundles import Bundle


@validated
class EngineChoice:
    """A backend and the options with which `ane bench` measured it.

    Attributes:
        backend: Name of the backend.
        compute_units: Compute units of Core ML. ``None`` means the units that the bundle names.
        threads: Number of CPU threads. ``None`` means the backend's choice.
        precision: Number format of the weights. "auto" means the backend's choice.
    """

    backend: str
    compute_units: str | None = None
    threads: int | None = None
    precision: str = "auto"

    def __str__(self) -> str:
        threads = f"{self.threads} threads" if self.threads else None
        precision = None if self.precision == "auto" else self.precision
        return ", ".join(filter(None, (self.backend, precision, self.compute_units, threads)))


@validated
class MeasuredEngines:
    """The engines that `ane bench` found fastest for a bundle.

    Attributes:
        machine: Chip and operating system on which `ane bench` ran. On any other machine, `ane` ignores the
            measurement.
        date: Date of the measurement.
        decoder: Engine that was fastest for the decoder.
        others: Engine that was fastest for all other networks.
    """

    machine: str
    date: str
    decoder: EngineChoice
    others: EngineChoice

    def __str__(self) -> str:
        return (
            str(self.decoder)
            if self.decoder == self.others
            else f"the decoder on {self.decoder}, the other networks on {self.others}"
        )


def this_machine() -> str:
    """Return the chip and the version of the operating system. If either changes, another engine may be faster."""
    return f"{processor_name()}, {system_version()}"


def measured_file(model: "Bundle") -> Path:
    return cache_dir() / "measured" / f"{model.identity[:32]}.json"


def measured_engines(model: "Bundle") -> MeasuredEngines | None:
    """Return the engines that `ane bench` found fastest for a bundle on this machine and system.

    ``None`` means that `ane bench` has not measured the bundle here.
    """
    with suppress(UserError):
        file = measured_file(model)
        if file.is_file():
            measured = read_record(MeasuredEngines, read_json(file), str(file))
            return measured if measured.machine == this_machine() else None
    return None


def remember(model: "Bundle", date: str, decoder: EngineChoice, others: EngineChoice) -> None:
    """Store the fastest engines of a bundle. Raises UserError if the cache cannot be written."""
    file = measured_file(model)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_json(file, {"machine": this_machine(), "date": date, "decoder": vars(decoder), "others": vars(others)})
