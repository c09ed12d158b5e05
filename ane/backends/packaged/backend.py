"""``ane.backends.base.Backend`` on the fixed-shape Core ML packages of a bundle."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ane.backends.base import AlignmentBackend, check_inputs
from ane.backends.packaged.decoder import PackagedDecoder
from ane.backends.packaged.fallback import FallbackDecoder, FallbackDenoiser, attempt
from ane.backends.packaged.functions import EngineRefusalError, PackageFunction, PackageRuntime
from ane.backends.packaged.state_trial import STEPS, StateRecords, try_state
from ane.bundles.hashes import check_hashes
from ane.bundles.packages import COMPUTE_UNITS, WEIGHTS, PackageRecord, missing_packages
from ane.system.errors import UserError
from ane.system.machine import memory_bytes

if TYPE_CHECKING:
    from ane.bundles.bundle import Bundle

CPU, GPU, NEURAL_ENGINE, ALL = COMPUTE_UNITS
NEXT_UNITS = {ALL: GPU, NEURAL_ENGINE: GPU, GPU: CPU}       # refused compute units → what is tried then
LOADED_FUNCTIONS = 4        # of a network that a text uses, such as three buckets and the conditioning
MEMORY_SHARE = 0.4          # of the installed memory that loaded functions may take
STEP_KINDS = {"io": "step", "state": "state"}       # kind of kv-cache → kind of function that steps the decoder


class PackagedBackend:
    """Runs the stages on the functions of a bundle's packages.

    Args:
        runtime: loads the functions: Core ML, or the interpreter of its packages.
        fallback: runs the networks that have no package (CVVP, the classifier) and reads the decoder's tables.
        precision: of the packages to use; "auto": the first that the bundle has of each network.
        cache: kind of kv-cache, "io" or "state"; "auto": the only one that the bundle has; of both state, if ``states``
            says that it works, else io.
        compute_units: where Core ML may run networks, by name; the bundle states it for the others.
        only: names of the functions to use; None: all.
        keep: keep functions of released networks loaded.
        states: what is known of states on this machine; they are tried when that is nothing. None: "auto" means io.
        notice: called with a line when states do not work.
        on_refusal: called with a line when a network cannot run where it should; it then runs on the next of
            ``NEXT_UNITS``, or on ``fallback``, for as long as the backend exists. None: the error is raised.

    Raises:
        UserError: the bundle has no packages, or none of that precision or cache.
    """

    def __init__(self, model: "Bundle", runtime: PackageRuntime, fallback: AlignmentBackend, precision: str = "auto",
                 cache: str = "auto", compute_units: dict[str, str] | None = None,
                 only: frozenset[str] | None = None, keep: bool = False,
                 on_refusal: Callable[[str], None] | None = None, states: StateRecords | None = None,
                 notice: Callable[[str], None] = lambda line: None):
        self.model, self.runtime, self.fallback, self.cache, self.only = model, runtime, fallback, cache, only
        self.keep, self.on_refusal, self.stages = keep, on_refusal, model.family.stages
        self.states, self.notice = states, notice
        self.packages = select_packages(model, precision)
        self.name = describe_packages(runtime.name, self.packages, model)
        self._compute_units = dict(compute_units or {})
        self._functions: dict[str, list[PackageFunction]] = {}
        self._tables: dict[str, dict[str, np.ndarray]] = {}

    def run(self, stage: str, **inputs: np.ndarray) -> np.ndarray:
        declared = self.stages.calls[stage]
        check_inputs(stage, declared, inputs)

        def work() -> np.ndarray:
            if declared.network not in self.packages:
                return self.fallback.run(stage, **inputs)
            return declared.packaged(NetworkFunctions(self, declared.network), stage, inputs)

        return attempt(work, lambda error: self._move_on(declared.network, error))

    def longest(self, stage: str, length: str) -> int | None:
        """The largest bucket of a stage; None for a network that has no package."""
        network = self.stages.calls[stage].network
        records = self.packages[network].functions.values() if network in self.packages else ()
        return max((record.bucket[length] for record in records if record.kind == stage), default=None)

    def embeddings(self) -> dict[str, np.ndarray]:
        return self.fallback.embeddings()

    def decoder(self, lanes: int, capacity: int, prefixes: int = 1, max_prefix_length: int | None = None) -> Any:
        network = self.stages.decoder.network

        def bind() -> Any:
            if network not in self.packages:
                return self.fallback.decoder(lanes, capacity, prefixes, max_prefix_length)
            return self._bind(network, self._step_functions(network), lanes, capacity, prefixes, max_prefix_length,
                              not self.keep)

        if network not in self.packages or self.on_refusal is None:
            return bind()
        return FallbackDecoder(bind, lambda error: self._move_on(network, error))

    def _bind(self, network: str, steps: Sequence[PackageFunction], lanes: int, capacity: int, prefixes: int = 1,
              max_prefix_length: int | None = None, release_prefill: bool = False) -> PackagedDecoder:
        package, shape = self.packages[network], self.model.config(network).decoder_shape
        return PackagedDecoder(self.functions(network, "prefill"), steps, self.functions(network, "store"), lanes,
                               capacity, (shape.layers, shape.heads, shape.head_width), package.scale,
                               np.float32 if package.precision == "fp32" else np.float16, prefixes,
                               max_prefix_length, self.functions(network, "memory"), release_prefill)

    def align(self, columns: np.ndarray, memory: np.ndarray,
              heads: Sequence[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
        """On the fallback: it is one pass a window, and no package returns attention scores."""
        return self.fallback.align(columns, memory, heads)

    def prefix_attention(self, columns: np.ndarray, prefix: int, heads: Sequence[tuple[int, int]]) -> np.ndarray:
        """On the fallback: it is one pass a chunk, and no package returns attention scores."""
        return self.fallback.prefix_attention(columns, prefix, heads)

    def denoiser(self, latents: np.ndarray, conditioning: np.ndarray, frames: int) -> Any:
        stage = self.stages.denoiser

        def bind() -> Any:
            if stage.network not in self.packages:
                return self.fallback.denoiser(latents, conditioning, frames)
            return stage.packaged(NetworkFunctions(self, stage.network), latents, conditioning, frames)

        if stage.network not in self.packages or self.on_refusal is None:
            return bind()
        return FallbackDenoiser(bind, lambda error: self._move_on(stage.network, error))

    def _move_on(self, network: str, error: UserError) -> None:
        """After an error of a network's package: choose where the network runs from now on, or raise the error."""
        if self.on_refusal is None or network not in self.packages:
            raise error
        package = self.packages[network]
        units = self._compute_units.get(network, package.compute_units)
        further = NEXT_UNITS.get(units) if isinstance(error, EngineRefusalError) and not error.everywhere else None
        self._functions.pop(network, None)
        self.runtime.unload(self.model.path / package.path)
        if further is None:
            del self.packages[network]
        else:
            self._compute_units[network] = further
        self.on_refusal(f"{str(error).partition('; ')[0]}. Running {network} on {further or 'torch'} instead.")

    def load(self, *networks: str) -> None:
        """Check the files of these networks' packages. No function is loaded: which are needed depends on the text."""
        for network in networks:
            if network in self.packages:
                self.functions(network, "")
        self.fallback.load(*(network for network in networks if network not in self.packages))

    def release(self, *networks: str) -> None:
        self.fallback.release(*networks)
        if self.keep:
            return
        for network in networks or tuple(self._functions):
            self._tables.pop(network, None)
            if self._functions.pop(network, None):
                self.runtime.unload(self.model.path / self.packages[network].path)

    def functions(self, network: str, kind: str) -> list[PackageFunction]:
        """The functions of a kind, one per bucket; none when the package was converted without that kind."""
        if network not in self._functions:
            package = self.packages[network]
            check_hashes(self.model.path, package.files)
            compute_units = self._compute_units.get(network, package.compute_units)
            path = self.model.path / package.path
            self._functions[network] = [
                PackageFunction(self.runtime, path, name, record.bucket, compute_units, record.kind)
                for name, record in package.functions.items() if self.only is None or name in self.only]
        return [function for function in self._functions[network] if function.kind == kind]

    def table(self, network: str, key: str) -> np.ndarray:
        """The parameter with this key in the network's state dict, float32."""
        tables = self._tables.setdefault(network, {})
        if key not in tables:
            tables[key] = self.model.tensors(network)[key].float().numpy()
        return tables[key]

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
        path, units = self.model.path / self.packages[network].path, steps[0].compute_units
        problem = self.states.read(path, units)
        if problem is None:
            shape = self.model.config(network).decoder_shape
            problem = try_state(lambda: self._bind(network, steps, 1, STEPS), prefills, shape.width,
                                shape.memory_length)
            self.states.write(path, units, problem)
            if problem:
                self.notice(f"{problem.partition('; ')[0]}. The host keeps the cache of {network} instead, which is "
                            "slower.")
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


def select_packages(model: "Bundle", precision: str) -> dict[str, PackageRecord]:
    """One Core ML package for each network that has any: of this precision, or, where there is only one, of that.

    Raises:
        UserError: the bundle has no packages, none of that precision, or one made from other weights than the bundle's.
    """
    if not getattr(model, "packages", None):
        raise missing_packages(model, "coreml", "use backend=torch")
    converted = model.family.networks_with("fp16_package" if precision in ("fp32", "fp16") else "compressed")
    return packages_in(model, model.packages, precision, {}, converted)


def packages_in(model: "Bundle", packages: list[PackageRecord], precision: str, stored: Mapping[str, str],
                converted: Collection[str]) -> dict[str, PackageRecord]:
    """One package for each network that has any; "auto": the first.

    Args:
        stored: for some networks, the precision of their packages when the others have ``precision``.
        converted: networks that can have ``precision``. Others, as UnivNet in fp16, may have any.

    Raises:
        UserError: a network has none in that precision, or a package was made from other weights than the bundle's.
    """
    found: dict[str, PackageRecord] = {}
    for package in packages:
        if precision == "auto" or package.precision == stored.get(package.network, precision):
            found.setdefault(package.network, package)
    for package in packages:
        if package.network not in found and package.network in converted:
            available = ", ".join(dict.fromkeys(p.precision for p in packages if p.network == package.network))
            raise UserError(f"{model.name} has its {package.network} in {available}, not in {precision}: choose one of "
                            f"them, or convert again in {precision}")
        weights = package.source.get(WEIGHTS)
        if weights and weights != model.manifest.networks[package.network].weights.sha256:
            raise UserError(f"{model.path / package.path} was converted from other weights than those in the bundle: "
                            "convert the model again")
    for package in packages:
        found.setdefault(package.network, package)
    return found


def fits_in_memory(packages: Mapping[str, PackageRecord], installed: int | None = None) -> bool:
    """Whether the functions of all networks can stay loaded, rather than of one stage at a time.

    Loaded functions take memory each, whether they share weights or not (apple/coremltools#2351): estimated as
    ``LOADED_FUNCTIONS`` times the weights of every package, at most ``MEMORY_SHARE`` of the installed bytes.
    """
    installed = memory_bytes() if installed is None else installed
    weights = sum(file.bytes for package in packages.values() for file in package.files)
    return installed is None or LOADED_FUNCTIONS * weights <= MEMORY_SHARE * installed


def describe_packages(runtime: str, packages: dict[str, PackageRecord], model: "Bundle") -> str:
    """A backend's name for reports: runtime, precisions of its packages, and the networks that run on torch."""
    precisions = "+".join(sorted({package.precision for package in packages.values()}))
    missing = sorted(model.family.networks_with("for_speech") & set(model.networks) - set(packages))
    return f"{runtime} {precisions}" + (f", on torch: {', '.join(missing)}" if missing else "")
