"""The engine on the fixed-shape Core ML packages of a bundle, which Core ML, Core AI or the interpreter runs."""

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ane.backends.base import Backend, Decoder, Stage
from ane.backends.denoising import Denoiser
from ane.backends.packaged.decoder import PackagedDecoder
from ane.backends.packaged.engine import PackagedEngine
from ane.backends.packaged.fallback import FallbackDecoder, FallbackDenoiser, attempt
from ane.backends.packaged.functions import EngineRefusalError, PackageFunction, Runtime
from ane.backends.packaged.selection import select_packages
from ane.bundles.packages import COMPUTE_UNITS
from ane.system.decibels import snr_db
from ane.system.errors import UserError
from ane.system.files import read_json, write_json

if TYPE_CHECKING:
    from ane.bundles.bundle import Bundle

LOGGER = logging.getLogger(__name__)
CPU, GPU, NEURAL_ENGINE, ALL = COMPUTE_UNITS
NEXT_UNITS = {ALL: GPU, NEURAL_ENGINE: GPU, GPU: CPU}       # refused compute units → what is tried then
STEP_KINDS = {"io": "step", "state": "state"}       # kind of kv-cache → kind of function that steps the decoder
THRESHOLD = 30.0        # dB; fp16 gives 50, a column that is not stored less than 10
STEPS = 2               # the second also sees a column that is not stored yet


class PackagedBackend(PackagedEngine):
    """Runs the stages on the fixed-shape functions of a bundle's Core ML packages.

    Args:
        runtime: loads the functions: Core ML, or the interpreter of its packages.
        fallback: runs the networks that have no package, such as CVVP and the classifier.
        precision: of the packages to use; "auto": the first that the bundle has of each network.
        cache: kind of kv-cache, "io" or "state"; "auto": the only one that the bundle has; of both state, if ``states``
            says that it works, else io.
        compute_units: where Core ML may run networks, by name; the bundle states it for the others.
        only: names of the functions to use; None: all.
        keep: keep functions of released networks loaded.
        states: (package, compute units) → the file that remembers whether states work on this machine; they are tried
            when there is none. None: "auto" means io.
        moves_on: a network that cannot run where it should runs on the next of ``NEXT_UNITS``, or on ``fallback``, for
            as long as the backend exists. False: the error is raised.

    Raises:
        UserError: the bundle has no packages, or none of that precision or cache.
    """

    def __init__(self, model: "Bundle", runtime: Runtime, fallback: Backend, precision: str = "auto",
                 cache: str = "auto", compute_units: dict[str, str] | None = None,
                 only: frozenset[str] | None = None, keep: bool = False,
                 moves_on: bool = False, states: Callable[[Path, str], Path] | None = None):
        super().__init__(model, select_packages(model, precision), runtime.name, fallback, keep)
        self.runtime, self.cache, self.only = runtime, cache, only
        self.moves_on, self.states = moves_on, states
        self._compute_units = dict(compute_units or {})
        self._functions: dict[str, list[PackageFunction]] = {}

    def _attempt(self, network: str, work: Callable[[], Any]) -> Any:
        return attempt(work, partial(self._move_on, network))

    def _run(self, declared: Stage, stage: str, inputs: dict[str, np.ndarray]) -> np.ndarray:
        return declared.packaged(NetworkFunctions(self, declared.network), stage, inputs)

    def longest(self, stage: str, length: str) -> int | None:
        """The largest bucket of a stage; None for a network that has no package."""
        network = self.stages.calls[stage].network
        records = self.packages[network].functions.values() if network in self.packages else ()
        return max((record.bucket[length] for record in records if record.kind == stage), default=None)

    def decoder(self, lanes: int, capacity: int, prefixes: int = 1, max_prefix_length: int | None = None) -> Decoder:
        bind = partial(super().decoder, lanes, capacity, prefixes, max_prefix_length)
        network = self.stages.decoder.network
        return FallbackDecoder(bind, partial(self._move_on, network)) if self._may_move(network) else bind()

    def denoiser(self, latents: Sequence[np.ndarray], conditioning: np.ndarray, frames: Sequence[int]) -> Denoiser:
        bind = partial(super().denoiser, latents, conditioning, frames)
        network = self.stages.denoiser.network
        return FallbackDenoiser(bind, partial(self._move_on, network)) if self._may_move(network) else bind()

    def _may_move(self, network: str) -> bool:
        return network in self.packages and self.moves_on

    def _decoder(self, lanes: int, capacity: int, prefixes: int, max_prefix_length: int | None) -> PackagedDecoder:
        network = self.stages.decoder.network
        return self._bind(network, self._step_functions(network), lanes, capacity, prefixes, max_prefix_length,
                          not self.keep)

    def _denoiser(self, latents: np.ndarray, conditioning: np.ndarray, frames: int) -> Denoiser:
        stage = self.stages.denoiser
        return stage.packaged(NetworkFunctions(self, stage.network), latents, conditioning, frames)

    def _bind(self, network: str, steps: Sequence[PackageFunction], lanes: int, capacity: int, prefixes: int = 1,
              max_prefix_length: int | None = None, release_prefill: bool = False) -> PackagedDecoder:
        package, shape = self.packages[network], self.model.config(network).decoder_shape
        dtype = np.float32 if self.runtime.in_place or package.precision == "fp32" else np.float16
        return PackagedDecoder(self.functions(network, "prefill"), steps, self.functions(network, "store"), lanes,
                               capacity, (shape.layers, shape.heads, shape.head_width), package.scale, dtype, prefixes,
                               max_prefix_length, self.functions(network, "memory"), release_prefill)

    def _move_on(self, network: str, error: UserError) -> None:
        """After an error of a network's package: choose where the network runs from now on, or raise the error."""
        if not self._may_move(network):
            raise error
        package = self.packages[network]
        units = self._compute_units.get(network, package.compute_units)
        further = NEXT_UNITS.get(units) if isinstance(error, EngineRefusalError) and not error.everywhere else None
        self._unload(network)
        if further is None:
            del self.packages[network]
        else:
            self._compute_units[network] = further
        LOGGER.info("%s. Running %s on %s instead.", str(error).partition("; ")[0], network, further or "torch")

    def _load(self, network: str) -> None:
        """Check the files alone: which functions are needed depends on the text."""
        self.checked(network)

    def _unload(self, network: str) -> None:
        if self._functions.pop(network, None):
            self.runtime.unload(self.model.path / self.packages[network].path)

    def functions(self, network: str, kind: str) -> list[PackageFunction]:
        """The functions of a kind, one per bucket; none when the package was converted without that kind."""
        if network not in self._functions:
            package = self.checked(network)
            compute_units = self._compute_units.get(network, package.compute_units)
            path = self.model.path / package.path
            self._functions[network] = [
                PackageFunction(self.runtime, path, name, record.bucket, compute_units, record.kind)
                for name, record in package.functions.items() if self.only is None or name in self.only]
        return [function for function in self._functions[network] if function.kind == kind]

    def _step_functions(self, network: str) -> list[PackageFunction]:
        kinds = [STEP_KINDS[self.cache]] if self.cache != "auto" else list(STEP_KINDS.values())
        found = [steps for kind in kinds if (steps := [step for step in self.functions(network, kind)
                                                       if kind == "step" or "capacity" in step.bucket])]
        if len(found) > 1 and self._state_works(network, found[1]):
            return found[1]
        if found:
            return found[0]
        raise UserError(f"{self.model.name} has no decoder steps with the cache {self.cache}: convert it again with "
                        f"the cache {self.cache}, or use cache=auto")

    def _state_works(self, network: str, steps: Sequence[PackageFunction]) -> bool:
        """Whether a network's functions with states return what they should, as known or as tried now."""
        prefills = self.functions(network, "prefill")
        if self.states is None or not prefills:
            return False
        remembered = self.states(self.model.path / self.packages[network].path, steps[0].compute_units)
        problem = read_problem(remembered)
        if problem is None:
            shape = self.model.config(network).decoder_shape
            problem = try_state(lambda: self._bind(network, steps, 1, STEPS), prefills, shape.width,
                                shape.memory_length)
            write_json(remembered, {"problem": problem})
            if problem:
                LOGGER.info("%s. The host keeps the cache of %s instead, which is slower.", problem.partition("; ")[0],
                            network)
        return not problem


@dataclass(frozen=True)
class NetworkFunctions:
    """``ane.backends.base.FunctionSet`` of one network."""

    backend: PackagedBackend
    network: str

    def functions(self, kind: str) -> list[PackageFunction]:
        return self.backend.functions(self.network, kind)

    def table(self, key: str) -> np.ndarray:
        return self.backend.table(self.network, key)


def read_problem(path: Path) -> str | None:
    """What a trial found, from the file that remembers it: "": states work; None: not tried, or the file is damaged."""
    with suppress(UserError, KeyError, TypeError):
        return str(read_json(path)["problem"])
    return None


def try_state(make: Callable[[], PackagedDecoder], prefills: Sequence[PackageFunction], width: int,
              memory_length: int | None) -> str:
    """Why an engine does not keep a decoder's state on this machine as it should, or "".

    A prefix that is stored in the state and continued column by column must give what one call without a cache gives,
    on the same engine, with the same weights. ``make``: a decoder of one lane and ``STEPS`` columns on functions with
    states.
    """
    rng = np.random.default_rng(0)
    count = max(function.bucket["columns"] for function in prefills)
    columns = rng.standard_normal((min(count, 64 + STEPS + 4), width), dtype=np.float32)
    memory = rng.standard_normal((memory_length, width), dtype=np.float32) if memory_length else None
    try:
        decoder = make()
        if memory is not None:
            decoder.set_memory(memory)
        expected = decoder.prefill(columns)
        decoder.prefill(columns[:-STEPS])
        for index, column in enumerate(columns[-STEPS:]):
            hidden, logits = decoder.step(column[None, None], np.array([index]))
    except EngineRefusalError as error:
        return str(error)
    found = min(snr_db(expected[0], hidden[0, 0]), snr_db(expected[1], logits[0]))
    return "" if found >= THRESHOLD else f"a state of {prefills[0].package} returns other values ({found:.0f} dB)"
