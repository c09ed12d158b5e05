"""``ane.backends.base.Backend`` on the Core ML packages of a bundle."""

from typing import TYPE_CHECKING, Any

import numpy as np

from ane.backends.base import STAGES, Backend, check
from ane.backends.packaged.decoder import PackagedDecoder
from ane.backends.packaged.functions import Engine, Function
from ane.bundles.hashes import check_hash
from ane.bundles.packages import ALWAYS_FP32, COMPRESSED, WEIGHTS, PackageRecord
from ane.models.tortoise.networks import NETWORKS
from ane.models.tortoise.packaged.clvp import Side
from ane.models.tortoise.packaged.denoiser import PackagedDenoiser
from ane.models.tortoise.packaged.encoders import clip_latents, random_latents
from ane.models.tortoise.packaged.vocoders import HifiganVocoder, UnivnetVocoder
from ane.system.errors import UserError

SPEAKING = frozenset({"autoregressive", "diffusion", "clvp", "univnet", "hifigan"})

if TYPE_CHECKING:
    from ane.bundles.bundle import Bundle


class PackagedBackend:
    """Runs the stages on the functions of a bundle's packages, whichever engine loads them.

    Args:
        precision: of the packages to use; "auto": the first that the bundle holds of each network.
        cache: kind of kv-cache, "io" or "state"; "auto": io, unless the bundle holds the other alone.
        units: where Core ML may run each network, in place of what the bundle says.
        rest: the engine of networks that have no package (CVVP, the classifier).
        only: names of functions to use, and no others.
        keep: keep functions that a step has released.

    Raises:
        UserError: the bundle has no packages, or none of that precision or cache.
    """

    def __init__(self, model: "Bundle", engine: Engine, rest: Backend, precision: str = "auto", cache: str = "auto",
                 units: dict[str, str] | None = None, only: frozenset[str] | None = None, keep: bool = False):
        self.model, self.engine, self.rest, self.cache, self.only, self.keep = model, engine, rest, cache, only, keep
        self.packages = choose(model, precision)
        self.name = named(engine, self.packages, model)
        self._units = units or {}
        self._functions: dict[str, list[Function]] = {}
        self._tables: dict[str, dict[str, np.ndarray]] = {}

    def run(self, stage: str, **inputs: np.ndarray) -> np.ndarray:
        check(stage, inputs)
        network = STAGES[stage].network
        if network not in self.packages:
            return self.rest.run(stage, **inputs)
        return self._called(stage, inputs)

    def embeddings(self) -> dict[str, np.ndarray]:
        return self.rest.embeddings()

    def decoder(self, lanes: int, capacity: int, prefixes: int = 1, longest: int | None = None) -> Any:
        if "autoregressive" not in self.packages:
            return self.rest.decoder(lanes, capacity, prefixes, longest)
        package = self.packages["autoregressive"]
        config = self.model.config("autoregressive")
        geometry = (config.layers, config.heads, config.model_dim // config.heads)
        before = self.functions("autoregressive", "prefill"), self.functions("autoregressive", "fill")
        return PackagedDecoder(*before, self._steps(), lanes, capacity, geometry, package.scale, dtype(package),
                               prefixes, longest)

    def denoiser(self, latents: np.ndarray, conditioning: np.ndarray, frames: int) -> Any:
        if "diffusion" not in self.packages:
            return self.rest.denoiser(latents, conditioning, frames)
        kinds = [self.functions("diffusion", kind) for kind in ("condition", "denoise", "sample")]
        return PackagedDenoiser(*kinds, self.table("diffusion", "unconditioned_embedding"), latents, conditioning,
                                frames)

    def load(self, *networks: str) -> None:
        """Checks the packages of these networks; which of their functions a text takes only the text says."""
        for network in networks:
            if network in self.packages:
                self.functions(network, "")
        self.rest.load(*(network for network in networks if network not in self.packages))

    def release(self, *networks: str) -> None:
        self.rest.release(*networks)
        if self.keep:
            return
        for network in networks or tuple(self._functions):
            self._tables.pop(network, None)
            if self._functions.pop(network, None):
                self.engine.forget(self.model.path / self.packages[network].path)

    def functions(self, network: str, kind: str) -> list[Function]:
        """The functions of a kind, none when the package was made without it."""
        if network not in self._functions:
            package = self.packages[network]
            for file in package.files:
                check_hash(self.model.path, file)
            units = self._units.get(network, package.units)
            path = self.model.path / package.path
            self._functions[network] = [Function(self.engine, path, name, record.bucket, units, record.kind)
                                        for name, record in package.functions.items()
                                        if self.only is None or name in self.only]
        return [function for function in self._functions[network] if function.kind == kind]

    def table(self, network: str, key: str) -> np.ndarray:
        """A parameter that the host uses itself, float32."""
        tables = self._tables.setdefault(network, {})
        if key not in tables:
            tables[key] = self.model.tensors(network)[key].float().numpy()
        return tables[key]

    def _called(self, stage: str, inputs: dict[str, np.ndarray]) -> np.ndarray:
        network = STAGES[stage].network
        functions = self.functions(network, stage)
        if stage == "univnet":
            return UnivnetVocoder(functions)(**inputs)
        if stage == "hifigan":
            return HifiganVocoder(functions)(**inputs)
        if stage == "clvp_text":
            factor = float(np.exp(self.table(network, "temperature")))
            return Side(functions, self.table(network, "text_emb.weight"), factor, "the text")(*inputs.values())
        if stage == "clvp_speech":
            return Side(functions, self.table(network, "speech_emb.weight"), 1.0, "the speech")(*inputs.values())
        encoded = clip_latents if stage.endswith("conditioning") else random_latents
        return encoded(functions, *inputs.values())

    def _steps(self) -> list[Function]:
        kinds = {"io": "step", "state": "state"}
        for kind in kinds.values() if self.cache == "auto" else (kinds[self.cache],):
            steps = self.functions("autoregressive", kind)
            if steps:
                return steps
        raise UserError(f"{self.model.name} has no decoder steps with the cache {self.cache}: convert it again with "
                        f"--cache {self.cache}, or leave --cache out")


def kept_exact(precision: str) -> frozenset[str]:
    """Networks that have a precision of their own where the others have this one."""
    return ALWAYS_FP32 if precision in ("fp32", "fp16") else frozenset(NETWORKS) - COMPRESSED


def choose(model: "Bundle", precision: str) -> dict[str, PackageRecord]:
    """One package for each network that has any: of that precision, or of another where there is but that."""
    if not getattr(model, "packages", None):
        raise UserError(f"{model.name} holds no Core ML packages: make them with `ane convert {model.path} --to coreml "
                        "-o DIR` and use --bundle DIR, or take --backend torch")
    found: dict[str, PackageRecord] = {}
    for package in model.packages:
        if precision in ("auto", package.precision):
            found.setdefault(package.network, package)
    for package in model.packages:
        if package.network not in found and package.network not in kept_exact(precision):
            there = ", ".join(dict.fromkeys(p.precision for p in model.packages if p.network == package.network))
            raise UserError(f"{model.name} holds its {package.network} in {there}, not in {precision}: choose one of "
                            f"them, or convert again with --precision {precision}")
    for package in model.packages:
        weights = package.source.get(WEIGHTS)
        if weights and weights != model.manifest.networks[package.network].weights.sha256:
            raise UserError(f"{model.path / package.path} was made from other weights than those beside it: convert "
                            "the model again")
    for package in model.packages:      # a vocoder has one precision whatever the rest has
        found.setdefault(package.network, package)
    return found


def named(engine: Engine, packages: dict[str, PackageRecord], model: "Bundle") -> str:
    """What is told of a backend: the precisions of its packages, and what has none and stays on torch."""
    precisions = "+".join(sorted({package.precision for package in packages.values()}))
    missing = sorted(SPEAKING & set(model.networks) - set(packages))
    return f"{engine.name} {precisions}" + (f", on torch: {', '.join(missing)}" if missing else "")


def dtype(package: PackageRecord) -> type:
    """Of a package's inputs."""
    return np.float32 if package.precision == "fp32" else np.float16
