"""The engine on the fixed-shape Core ML packages of a bundle, which Core ML, Core AI or the interpreter runs."""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ane.backends.base import Backend, Decoder, FunctionSet, Stage
from ane.backends.denoising import Denoiser
from ane.backends.packaged.decoder import PackagedDecoder
from ane.backends.packaged.engine import PackagedEngine
from ane.backends.packaged.fallback import FallbackDecoder, FallbackDenoiser, FunctionUnits, attempt
from ane.backends.packaged.functions import PackageFunction, Runtime
from ane.backends.packaged.probes import FILE as PROBES
from ane.backends.packaged.selection import select_packages
from ane.system.errors import UserError

if TYPE_CHECKING:
    from ane.bundles.bundle import Bundle

LOGGER = logging.getLogger(__name__)
STEP_KINDS = {"io": "step", "state": "state"}       # kind of kv-cache → kind of function that steps the decoder


class PackagedBackend(PackagedEngine):
    """Runs the stages on the fixed-shape functions of a bundle's Core ML packages.

    Args:
        runtime: loads the functions: Core ML, or the interpreter of its packages.
        fallback: runs the networks that have no package, such as CVVP and the classifier.
        precision: of the packages to use; "auto": the first that the bundle has of each network.
        cache: kind of kv-cache, "io" or "state"; "auto": the only one that the bundle has; of both, see
            ``prefer_state``.
        compute_units: where Core ML may run networks, by name; the bundle states it for the others.
        only: names of the functions to use; None: all.
        keep: keep functions of released networks loaded.
        prefer_state: of packages with both, "auto" means state if they have golden probes: then the runtime proves each
            function when it first loads it, and a state that fails gives way to io.
        moves_on: a function that cannot run where it should is replaced (``FunctionUnits``), or its network runs on
            ``fallback``, for as long as the backend exists. False: the error is raised.

    Raises:
        UserError: the bundle has no packages, or none of that precision or cache.
    """

    def __init__(self, model: "Bundle", runtime: Runtime, fallback: Backend, precision: str = "auto",
                 cache: str = "auto", compute_units: dict[str, str] | None = None,
                 only: frozenset[str] | None = None, keep: bool = False,
                 moves_on: bool = False, prefer_state: bool = False):
        super().__init__(model, select_packages(model, precision), runtime.name, fallback, keep)
        self.runtime, self.cache, self.only = runtime, cache, only
        self.moves_on, self.prefer_state = moves_on, prefer_state
        self._compute_units = dict(compute_units or {})
        self._units: dict[str, FunctionUnits] = {}
        self._functions: dict[str, list[PackageFunction]] = {}

    def _attempt(self, network: str, work: Callable[[], Any]) -> Any:
        return attempt(work, partial(self._move_on, network))

    def _run(self, declared: Stage, stage: str, inputs: dict[str, np.ndarray]) -> np.ndarray:
        return declared.packaged(self._function_set(declared.network), stage, inputs)

    def _function_set(self, network: str) -> FunctionSet:
        return FunctionSet(partial(self.functions, network), partial(self.table, network))

    def longest(self, stage: str, length: str) -> int | None:
        """The largest bucket of a stage; None for a network that has no package."""
        network = self.stages.calls[stage].network
        records = self.packages[network].functions.values() if network in self.packages else ()
        return max((record.bucket[length] for record in records if record.kind == stage), default=None)

    def decoder(self, lanes: int, capacity: int, prefixes: int = 1, max_prefix_length: int | None = None) -> Decoder:
        bind = partial(super().decoder, lanes, capacity, prefixes, max_prefix_length)
        network = self.stages.decoder.network
        bound_again = network in self.packages and (self.moves_on or self.prefer_state)
        return FallbackDecoder(bind, partial(self._move_on, network)) if bound_again else bind()

    def denoiser(self, latents: Sequence[np.ndarray], conditioning: np.ndarray, frames: Sequence[int]) -> Denoiser:
        bind = partial(super().denoiser, latents, conditioning, frames)
        network = self.stages.denoiser.network
        moves = network in self.packages and self.moves_on
        return FallbackDenoiser(bind, partial(self._move_on, network)) if moves else bind()

    def _decoder(self, lanes: int, capacity: int, prefixes: int, max_prefix_length: int | None) -> PackagedDecoder:
        network = self.stages.decoder.network
        package, shape = self.packages[network], self.model.config(network).decoder_shape
        dtype = np.float32 if self.runtime.in_place or package.precision == "fp32" else np.float16
        return PackagedDecoder(self.functions(network, "prefill"), self._step_functions(network),
                               self.functions(network, "store"), lanes, capacity,
                               (shape.layers, shape.heads, shape.head_width), package.scale, dtype, prefixes,
                               max_prefix_length, self.functions(network, "memory"), not self.keep)

    def _denoiser(self, latents: np.ndarray, conditioning: np.ndarray, frames: int) -> Denoiser:
        stage = self.stages.denoiser
        return stage.packaged(self._function_set(stage.network), latents, conditioning, frames)

    def _move_on(self, network: str, error: UserError) -> None:
        """After an error of a network's package: choose what replaces the function, or the network; or raise it."""
        units = self.units(network) if network in self.packages else None
        if units is None or not (self.moves_on or units.replaces_state(error)):
            raise error
        instead = units.refuse(error)
        self._unload(network)
        if not instead:
            del self.packages[network]
        LOGGER.info("%s. %s instead.", str(error).partition("; ")[0], instead or f"Running {network} on torch")

    def units(self, network: str) -> FunctionUnits:
        """Where the functions of a network's package run."""
        if network not in self._units:
            package = self.packages[network]
            self._units[network] = FunctionUnits(package, self._compute_units.get(network, package.compute_units))
        return self._units[network]

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
            path = self.model.path / package.path
            self._functions[network] = [
                PackageFunction(self.runtime, path, name, package.functions[name].bucket, units,
                                package.functions[name].kind)
                for name, units in self.units(network).by_function.items() if self.only is None or name in self.only]
        return [function for function in self._functions[network] if function.kind == kind]

    def _step_functions(self, network: str) -> list[PackageFunction]:
        kinds = [STEP_KINDS[self.cache]] if self.cache != "auto" else list(STEP_KINDS.values())
        found = [steps for kind in kinds if (steps := [step for step in self.functions(network, kind)
                                                       if kind == "step" or "capacity" in step.bucket])]
        if found:
            proven = self.prefer_state and (self.model.path / self.packages[network].path / PROBES).is_file()
            return found[-1 if proven else 0]
        raise UserError(f"{self.model.name} has no decoder steps with the cache {self.cache}: convert it again with "
                        f"the cache {self.cache}, or use cache=auto")
