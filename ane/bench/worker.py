"""Speak, or measure functions, in a separate process, whose peak memory is known and which Core ML may crash.

``python -m ane.bench.worker`` reads requests, one JSON object per line, and answers each with a JSON object:

- {"open": ``WorkerModel``} loads a model and a backend. The answer is {"backend": name of the backend}.
- {"prepare": ``TimedRequest``} loads the networks that such a request needs. The answer is {}.
- {"speak": ``TimedRequest``} speaks a text. The answer has "elapsed" (seconds of work), "seconds" (of audio), "codes"
  (sampled mel codes, over all candidates), "chunks" (number of chunks), "first_audio" (seconds from the text to the
  first sound), "stages" (seconds of work by stage) and "peak_bytes".
- {"list": ``FunctionRequest``} lists functions. The answer is {"rows": a row for each function, without figures}.
- {"measure": index in this list} measures a function. The answer is {"row": its row with figures}.

If the user can do something about an error, the answer is {"error": message}.
"""

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ane.system.checked import read_record
from ane.system.json_process import answer_requests

if TYPE_CHECKING:
    from ane.bench.measure import MeasuredFunction
    from ane.bundles import Bundle
    from ane.voices import Voice

SEED = 0


@dataclass(frozen=True)
class Tuning:
    """Settings of a backend.

    Attributes:
        backend: Name of the backend, one of ``ane.backends.NAMES`` but not "auto".
        precision: Precision (see ``load_backend``).
        compute_units: Compute units of Core ML for all networks. ``None`` means the units that the bundle names for
            each network.
        threads: Number of CPU threads. ``None`` means the backend's choice.
    """

    backend: str
    precision: str = "auto"
    compute_units: str | None = None
    threads: int | None = None

    @property
    def engine(self) -> str:
        return self.backend.partition(":")[0]

    def __str__(self) -> str:
        parts = [
            self.backend,
            *([] if self.precision == "auto" else [self.precision]),
            self.compute_units,
            self.threads and f"threads {self.threads}",
        ]
        return ", ".join(filter(None, parts))

    @property
    def flags(self) -> str:
        """The flags that give `ane say` these settings."""
        values = {
            "backend": self.backend,
            "precision": self.precision,
            "compute-units": self.compute_units,
            "threads": self.threads,
        }
        return " ".join(f"--{name} {value}" for name, value in values.items() if value not in (None, "auto"))


@dataclass(frozen=True)
class WorkerModel:
    """A model and the backend that runs it.

    Attributes:
        bundle: Directory of the bundle. ``None`` means the embedded bundle.
        tuning: Settings of the backend.
        keep: Whether released networks stay loaded (see ``ane.backends.load_backend``).
    """

    bundle: str | None = None
    tuning: Tuning = field(default_factory=lambda: Tuning("torch"))
    keep: bool | None = None

    @classmethod
    def of(cls, model: "Bundle", tuning: Tuning, keep: bool | None = None) -> "WorkerModel":
        return cls(str(model.path.resolve()), tuning, keep)

    def open(self) -> "Bundle":
        from ane.bundles import open_model

        return open_model(self.bundle and Path(self.bundle))


@dataclass(frozen=True)
class TimedRequest:
    """A text to speak, with the settings that matter for its time.

    Attributes:
        voice: Name of the voice. ``None`` means the model's default voice. A model without voices speaks with random
            latents.
        max_codes, steps, candidates, lanes: Settings of the model. ``None`` means the value in the preset.
        stream: Whether to stream the speech.
    """

    text: str = ""
    preset: str | None = None
    voice: str | None = None
    seed: int = SEED
    stream: bool = False
    candidates: int | None = None
    lanes: int | None = None
    max_codes: int | None = None
    steps: int | None = None

    def settings(self, model: "Bundle") -> Any:
        changes = {name: getattr(self, name) for name in ("candidates", "lanes") if getattr(self, name) is not None}
        settings = model.family.settings.of(self.preset, model.settings, **changes)
        if self.max_codes is not None:
            settings = replace(settings, sampling=replace(settings.sampling, max_codes=self.max_codes))  # type: ignore[attr-defined]
        if self.steps is not None and settings.diffusion is not None:  # type: ignore[attr-defined]
            settings = replace(settings, diffusion=replace(settings.diffusion, steps=self.steps))  # type: ignore[attr-defined]
        return settings

    def arguments(self, model: "Bundle") -> dict[str, Any]:
        """Return all arguments of ``speak``, without the text, that this kind of model takes."""
        voice = self.voice or random_voice(model)
        return {
            "settings": self.settings(model),
            **({"voice": voice} if model.takes_voices else {}),
            **({"seed": self.seed} if model.uses_seed else {}),
        }


@dataclass(frozen=True)
class FunctionRequest:
    """A request to measure the functions of a model's packages.

    Attributes:
        tuning: Settings of the backend.
        runs: Number of calls of each function.
        compiled: Folder for compiled Core ML models.
    """

    tuning: Tuning
    runs: int = 20
    compiled: str | None = None


class BenchWorker:
    """Answers the requests that the docstring of this module lists."""

    def __init__(self) -> None:
        self.model: Bundle | None = None
        self.functions: list[MeasuredFunction] = []
        self.runs = 0

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Answer a request. Raises UserError for an error about which the user can do something."""
        ((kind, content),) = request.items()
        return getattr(self, f"_{kind}")(content)

    def _open(self, content: Mapping[str, Any]) -> dict[str, Any]:
        from ane.backends import load_backend

        opened = read_record(WorkerModel, content, "the request")
        self.model, tuning = opened.open(), opened.tuning
        backend = load_backend(
            tuning.backend,
            self.model,
            tuning.precision,
            tuning.threads,
            opened.keep,
            compute_units=tuning.compute_units,
        )
        self.synthesizer = self.model.family.synthesizer(self.model, backend)
        return {"backend": backend.name}

    def _prepare(self, content: Mapping[str, Any]) -> dict[str, Any]:
        arguments = TimedRequest(**content).arguments(self.model)
        arguments.pop("seed", None)
        self.synthesizer.prepare(**arguments)
        return {}

    def _speak(self, content: Mapping[str, Any]) -> dict[str, Any]:
        from ane.system.machine import peak_memory_bytes

        request = TimedRequest(**content)
        arguments = request.arguments(self.model)
        if request.stream:
            self._prepare(content)
            speech = self.synthesizer.stream(request.text, **arguments)
            with closing(speech):
                for _ in speech:
                    pass
        else:
            speech = self.synthesizer.speak(request.text, **arguments)
        timeline = speech.timeline
        first_audio = None if timeline.first_audio is None else timeline.first_audio - timeline.text_ready
        return {
            "elapsed": speech.elapsed,
            "seconds": speech.seconds,
            "codes": getattr(speech, "codes", None),
            "chunks": len(speech.chunks),
            "first_audio": first_audio,
            "stages": speech.seconds_by_phase,
            "peak_bytes": peak_memory_bytes(),
        }

    def _list(self, content: Mapping[str, Any]) -> dict[str, Any]:
        request = read_record(
            FunctionRequest, {name: content[name] for name in content if name != "model"}, "the request"
        )
        self.model, self.runs = read_record(WorkerModel, content["model"], "the request").open(), request.runs
        self.functions = list(functions(request, self.model))
        return {"rows": [asdict(function.row) for function in self.functions]}

    def _measure(self, index: int) -> dict[str, Any]:
        from ane.bench.measure import measure_function

        return {"row": asdict(measure_function(self.functions[index], self.runs))}


def functions(request: FunctionRequest, model: "Bundle") -> "Iterator[MeasuredFunction]":
    """Yield the functions to measure for a request, from the model's packages."""
    from ane.backends.engines import package_runtime
    from ane.backends.packaged.selection import select_packages
    from ane.bench.measure import package_functions

    tuning = request.tuning
    runtime: Any
    if tuning.engine == "coreml":
        from ane.backends.coreml.compiled import CompiledCache
        from ane.backends.coreml.runtime import CoreMLRuntime

        runtime = CoreMLRuntime(cache=CompiledCache(Path(request.compiled or "")))
    else:
        runtime = package_runtime(*tuning.backend.partition(":")[::2])
    packages = select_packages(model, tuning.precision).values()
    yield from package_functions(model, packages, runtime, tuning.backend, tuning.compute_units)


def random_voice(model: "Bundle") -> "Voice | None":
    """Make random latents for a model that speaks with latents but has no voices.

    Return ``None`` for all other models.
    """
    import numpy as np

    from ane.voices import Voice

    if model.voices is not None or not model.has_latents:
        return None
    rng = np.random.default_rng(0)
    return Voice(*(rng.standard_normal((1, width), dtype=np.float32) for width in model.widths), name="random")


def main() -> None:
    answer_requests(lambda: BenchWorker().answer)


if __name__ == "__main__":
    main()
