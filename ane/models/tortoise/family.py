"""Declare the Tortoise family of models: how to import one, and which stages (named network calls) it has.

Bundles, backends and commands read this declaration.

Dimension names: B batch, T text tokens, S codes, N latents, L mel frames, D width of the decoder, C width of the
diffusion decoder's voice latent (2 × its channels), E width of CLVP, V codes of the vocabulary, Z channels of
UnivNet's noise.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

from ane.backends.base import DecoderStage, DenoiserStage, ModelStages, Stage, TensorSpec
from ane.backends.fixed_shapes import Exact, Rows
from ane.bundles import Bundle, open_model
from ane.bundles.contents import Contents
from ane.bundles.family import ModelFamily
from ane.bundles.hub import CHECKPOINTS, Snapshot, download_files
from ane.models.tortoise.checkpoint_files import REQUIRED, has_networks
from ane.models.tortoise.checkpoints import FILES, import_tortoise, source_files
from ane.models.tortoise.networks import NETWORKS
from ane.models.tortoise.packaged import bind_denoiser, denoiser_conditioning, run_clvp, univnet_sounds
from ane.models.tortoise.settings import TortoiseSettings
from ane.models.vocoders.segments import hifigan_sounds
from ane.models.vocoders.source_filter import PARAMETERS
from ane.system.errors import UserError

SOURCE_FILTERS = "source_filter", "mel_source_filter"

STAGES = {
    # These stages encode the mels of reference clips to voice latents. A batch has one clip per row.
    "ar_conditioning": Stage(
        "conditioning_encoder",
        {"mel": TensorSpec(("B", 80, "L"))},
        TensorSpec(("B", "D")),
        packaged=Exact("latent", "frames"),
    ),
    "diffusion_conditioning": Stage(
        "contextual_embedder",
        {"mel": TensorSpec(("B", 100, "L"))},
        TensorSpec(("B", "C")),
        packaged=Exact("latent", "frames"),
    ),
    "ar_random": Stage("rlg_auto", {"noise": TensorSpec(("B", "D"))}, TensorSpec(("B", "D")), packaged=Exact("latent")),
    "diffusion_random": Stage(
        "rlg_diffuser", {"noise": TensorSpec(("B", "C"))}, TensorSpec(("B", "C")), packaged=Exact("latent")
    ),
    # These stages rank candidates. The score of a candidate is the dot product of the text's vector with the speech's.
    "clvp_text": Stage("clvp", {"tokens": TensorSpec(("B", "T"), "int64")}, TensorSpec(("B", "E")), "text", run_clvp),
    "clvp_speech": Stage(
        "clvp", {"codes": TensorSpec(("B", "S"), "int64")}, TensorSpec(("B", "E")), "speech", run_clvp
    ),
    # These stages are vocoders. The input "frames" holds latents, interpolated to the rate of mel frames by
    # ane.models.tortoise.vocoding.
    "univnet": Stage(
        "univnet",
        {"mel": TensorSpec(("B", 100, "L")), "noise": TensorSpec(("B", "Z", "L+10"))},
        TensorSpec(("B", 1, "256L")),
        packaged=lambda package, stage, given: univnet_sounds(package.functions(stage), **given),
        divides=True,
    ),
    "bigvgan": Stage(
        "bigvgan",
        {"mel": TensorSpec(("B", 100, "L"))},
        TensorSpec(("B", 1, "256L")),
        packaged=lambda package, stage, given: hifigan_sounds(package.functions(stage), given["mel"]),
        divides=True,
    ),
    "hifigan": Stage(
        "hifigan",
        {"frames": TensorSpec(("B", "D", "L")), "conditioning": TensorSpec(("B", "D"))},
        TensorSpec(("B", 1, "256L")),
        packaged=lambda package, stage, given: hifigan_sounds(package.functions(stage), **given),
        divides=True,
    ),
    # These stages predict the parameters of a source filter (ane.models.vocoders.source_filter). A mask is 1 at the
    # frames of a row, and 0 at the padding after them.
    **{
        name: Stage(
            name,
            {"frames": TensorSpec(("B", "L", "D")), "mask": TensorSpec(("B", "L"))},
            TensorSpec(("B", "L", PARAMETERS)),
            packaged=Rows("frames"),
        )
        for name in SOURCE_FILTERS
    },
}


DECODER = DecoderStage(
    "autoregressive",
    {
        "text": "text_embedding.weight",
        "text_position": "text_pos_embedding.emb.weight",
        "code": "mel_embedding.weight",
        "code_position": "mel_pos_embedding.emb.weight",
    },
)

DENOISER = DenoiserStage("diffusion", denoiser_conditioning, lambda config: config.out_channels, bind_denoiser)


class TortoiseFamily(ModelFamily):
    name, title = "tortoise", "Tortoise"
    networks, stages, settings = NETWORKS, ModelStages(STAGES, DECODER, DENOISER), TortoiseSettings
    data = frozenset(("tokenizer", "mel_norms"))

    def recognises(self, path: Path) -> bool:
        if path.is_dir():
            return any(path.glob("*.pth")) or any(path.glob("models/*.pth"))
        return path.suffix in CHECKPOINTS and has_networks(path)

    def import_checkpoints(
        self,
        path: Path,
        config: Mapping[str, Any] | None = None,
        where: str = "",
        base: str | None = None,
        vocoder: Path | None = None,
        precision: str | None = None,
        ignore_unknown: bool = False,
        lora: Path | None = None,
    ) -> Contents:
        return import_tortoise(path, config, where, base_model(base), vocoder, precision, ignore_unknown, lora)

    def source_files(
        self, path: Path, base: str | None = None, vocoder: Path | None = None, lora: Path | None = None
    ) -> Mapping[str, Path]:
        return source_files(path, base_model(base), vocoder, lora)

    def download(self, repository: str, revision: str | None, progress: Callable[[str], None]) -> Snapshot:
        owner, name, *parts = repository.split("/")
        get = partial(download_files, f"{owner}/{name}", revision=revision, kind=self.title, progress=progress)
        if not parts:
            return get(REQUIRED, FILES)
        file = PurePosixPath(*parts)
        snapshot = get((str(file),), (str(file), str(file.with_name("tokenizer.json"))))
        return replace(snapshot, directory=snapshot.directory / file)


def base_model(base: str | None) -> Bundle | None:
    """Open the bundle whose networks complete a checkpoint. Raises UserError if there is no such Tortoise."""
    if base is None:
        return None
    model = open_model(base)
    if model.family.name != TortoiseFamily.name:
        raise UserError(f"base {base} is a {model.family.title} model, and a base must be a Tortoise model", "base")
    return model


FAMILY = TortoiseFamily()
