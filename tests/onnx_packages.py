"""Provide ONNX packages of a shallow golden model. The first test of a run that needs a package converts it for all."""

import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
from filelock import FileLock, Timeout

from ane.bundles import Bundle
from ane.bundles.package_records import PackageRecord, read_section, section
from ane.bundles.precisions import ONNX
from ane.bundles.writing import write_bundle
from ane.voices import Voice, save_voice
from converters.function_table import convertible_networks
from converters.onnx.onnx_package import OnnxOptions, OnnxTarget
from tests.shallow import shallow

TARGET = OnnxTarget()
NETWORKS = convertible_networks(TARGET.name)
# every network has a package in fp32
OTHER_PRECISIONS = {"autoregressive": ("fp16", "int8", "int4")}
SHALLOW = {
    "autoregressive": {"layers": 2},
    "clvp": {"text_enc_depth": 1, "speech_enc_depth": 1},
    "univnet": {"dilations": (3,)},
    "hifigan": {"resblock_dilation_sizes": ((1,), (1,), (1,))},
}


class OnnxPackages:
    """Packages in ``folder``, which the workers of a run share. Tests must not change them."""

    def __init__(self, model: Bundle, folder: Path):
        folder.mkdir(exist_ok=True)
        self.folder, path = folder, folder / "model"
        with FileLock(f"{path}.lock"):
            self.model = Bundle(path) if path.exists() else shallow(model, path, **SHALLOW)

    def package(self, network: str, precision: str = "fp32") -> PackageRecord:
        """A network's package, with its parity."""
        if ONNX[precision].bits:
            self.package(network)  # the quantised package is made from the graphs of this one
        stated = self.folder / f"{network}-{precision}.json"
        with FileLock(f"{stated}.lock"):
            if not stated.exists():
                made = TARGET.package(self.model, network, OnnxOptions(precision), self.folder, lambda what: None, "")
                stated.write_text(json.dumps({TARGET.name: section([made])}))
        (package,) = read_section(json.loads(stated.read_text()), str(stated), NETWORKS, TARGET.name)
        return package

    def bundle(self, *networks: str, full: bool = False) -> Bundle:
        """The model as a bundle with a voice, "noise", and packages of these networks (default: of all).

        Each is in fp32, and the decoder also in int8, int4 and fp16 unless ``full`` leaves them out.
        """
        destination = self.folder / "-".join(["bundle", *networks, *["full"] * full])
        wanted = {
            network: ("fp32", *(() if full else OTHER_PRECISIONS.get(network, ())))
            for network in networks or [network for network in NETWORKS if network in self.model.networks]
        }
        self._convert_those_that_no_other_worker_converts(wanted)
        packages = [self.package(network, precision) for network in wanted for precision in wanted[network]]
        with FileLock(f"{destination}.lock"):
            return Bundle(destination) if destination.exists() else self._write(destination, packages)

    def _convert_those_that_no_other_worker_converts(self, wanted: Mapping[str, Sequence[str]]) -> None:
        for network, precisions in wanted.items():
            with suppress(Timeout), FileLock(f"{self.folder / network}.lock", timeout=0):
                for precision in precisions:
                    self.package(network, precision)

    def _write(self, destination: Path, packages: Sequence[PackageRecord]) -> Bundle:
        rng = np.random.default_rng(0)
        latents = (rng.standard_normal((1, width), dtype=np.float32) for width in self.model.widths)
        with tempfile.TemporaryDirectory() as folder:
            work, voice = Path(folder), Path(folder) / "noise.safetensors"
            save_voice(voice, Voice(*latents, name="noise", source="random numbers"))
            for package in packages:  # onnx refuses weights that are hard links
                shutil.copytree(self.folder / package.path, work / package.path)
            return write_bundle(
                self.model.contents(),
                destination,
                name=destination.name,
                default_voice="noise",
                packages=packages,
                packages_root=work,
                voices={"noise": voice},
            )
