"""Run a training. Each part reads the output of earlier parts from the run's folder, and writes its output there."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import load_file

from ane.audio.mel import conditioning_mel, diffusion_mel
from ane.bundles.hashes import sha256_of
from ane.models.tortoise.checkpoints import packaged_file
from ane.models.tortoise.networks.conditioning import ConditioningEncoder, ContextualEmbedder
from ane.models.tortoise.vocoding import interpolate_latents
from ane.models.tortoise.voices import conditioning_window, diffusion_window
from ane.system.files import replacing
from ane.text import Tokenizer
from training.decoder import SILENT_CODES, DecoderInTraining, train_decoder, training_sequence
from training.denoiser import DenoiserInTraining, train_denoiser
from training.encoders import recordings, train_converter, train_encoder
from training.quantiser import Quantiser, train_quantiser, write_codes
from training.ranking import train_clvp
from training.recipe import CONFIGS, ENTRIES, Recipe, tokenizer_json
from training.source_filter import parameters_of, train_source_filter
from training.speech import Clip, Shard, clips_in, load_clips, number_of, speak_all
from training.text import texts_of_a_voice
from training.trainer import TrainedPart
from training.vocoders import train_hifigan, train_univnet

VALIDATION_CLIPS = 320  # about this many clips are used for validation
# the parts of a training, in order. A part needs only parts before it
PARTS = (
    "texts",
    "shards",
    "quantiser",
    "codes",
    "autoregressive",
    "latents",
    "hifigan",
    "univnet",
    "source_filter",
    "mel_source_filter",
    "diffusion",
    "clvp",
    "conditioning_encoder",
    "contextual_embedder",
    "rlg_auto",
    "rlg_diffuser",
)


@dataclass
class TrainingRun:
    """A training run in a folder. Its parts are properties. On first use, a part is computed or loaded from the folder.

    Attributes:
        folder: Folder of the run.
        recipe: Recipe of the run.
        device: Torch device.
        wordnet: Folder with WordNet's data files.
        workers: Number of processes that make speech.
        start: Folder of weights from which a part without a checkpoint starts. ``None`` means the folder "start" in the
            folder of the run.
    """

    folder: Path
    recipe: Recipe
    device: str
    wordnet: Path
    workers: int
    start: Path | None = None

    def part(self, name: str) -> TrainedPart:
        return TrainedPart(
            self.folder / name,
            self.recipe.parts[name],
            self.device,
            (self.start or self.folder / "start") / f"{name}.safetensors",
        )

    @property
    def voices(self) -> list[str]:
        return list(self.recipe.voices)

    @cached_property
    def mel_norms(self) -> np.ndarray:
        return load_file(packaged_file("mel_norms.safetensors"))["mel_norms"]

    @cached_property
    def texts(self) -> dict[str, list[str]]:
        """The texts that each voice speaks. Raises UserError if they must be written and WordNet is missing."""
        return {
            voice: texts_of_a_voice(
                self.folder / f"text-{voice}.txt", self.wordnet, clips_in(taught.hours), self.recipe.seed + index
            )
            for index, (voice, taught) in enumerate(self.recipe.voices.items())
        }

    @cached_property
    def shards(self) -> list[Path]:
        teachers = {voice: taught.teacher for voice, taught in self.recipe.voices.items()}
        size, workers = self.recipe.shard_clips, self.workers
        return speak_all(self.folder / "speech", self.texts, teachers, self.mel_norms, size, workers)

    def is_held_back(self, shard: Path) -> bool:
        """Return whether a shard is held back from the training of the decoder.

        Every n-th shard of a voice is held back. So a shard keeps its role when the recipe asks for more hours.
        """
        return number_of(shard) % round(1 / self.recipe.held_back) == 1

    @cached_property
    def training_shards(self) -> list[Path]:
        return [shard for shard in self.shards if not self.is_held_back(shard)]

    @cached_property
    def held_back_shards(self) -> list[Path]:
        return [shard for shard in self.shards if self.is_held_back(shard)]

    def clips(self, shards: list[Path]) -> list[Clip]:
        return load_clips(shards, [self.codes[shard] for shard in shards], self.voices, Tokenizer(tokenizer_json()))

    @property
    def validation_clips(self) -> list[Clip]:
        """About ``VALIDATION_CLIPS`` clips from the shards that are held back."""
        held_back = self.clips(self.held_back_shards)
        return held_back[:: max(1, len(held_back) // VALIDATION_CLIPS)]

    @cached_property
    def quantiser(self) -> Quantiser:
        clips = clips_in(self.recipe.quantiser_hours) / len(self.voices)
        count = max(1, round(clips / self.recipe.shard_clips))
        return train_quantiser(
            self.part("quantiser"), [shard for shard in self.shards if number_of(shard) < count], ENTRIES, self.voices
        )

    @cached_property
    def codes(self) -> dict[Path, Path]:
        paths = write_codes(self.folder / "codes", self.quantiser, self.shards, self.voices)
        return dict(zip(self.shards, paths, strict=True))

    @cached_property
    def autoregressive(self) -> DecoderInTraining:
        return train_decoder(
            self.part("autoregressive"),
            CONFIGS["autoregressive"],
            self.clips(self.training_shards),
            self.validation_clips,
            len(self.voices),
            self.quantiser,
        )

    @cached_property
    def latents(self) -> dict[tuple[Path, int], np.ndarray]:
        """Latents of the held-back clips, by shard and index, (n codes + 1 + SILENT_CODES, D) float16.

        A clip has latents for its codes, then for the stop code, then for the silence after it. The latents are cached
        in the run's folder for the current weights of the decoder.
        """
        path, decoder = self.folder / "latents.pt", self.autoregressive  # trains the decoder if necessary
        clips = self.clips(self.held_back_shards)
        key = [sha256_of(self.folder / "autoregressive" / "checkpoint.pt"), len(clips), SILENT_CODES]
        cached = torch.load(path, weights_only=True) if path.exists() else {}
        if cached.get("key") != key:
            cached = {"key": key, "rows": self.compute_latents(decoder, clips)}
            with replacing(path) as target:
                torch.save(cached, target)
        return {(clip.shard, clip.index): row.numpy() for clip, row in zip(clips, cached["rows"], strict=True)}

    @torch.no_grad()
    def compute_latents(self, decoder: DecoderInTraining, clips: list[Clip]) -> list[torch.Tensor]:
        latents = []
        for clip in clips:
            rows, positions, _, first = training_sequence(clip, CONFIGS["autoregressive"])
            hidden = decoder(*(torch.from_numpy(part)[None].to(self.device) for part in (rows, positions)))
            latents.append(hidden[0, first:].half().cpu())
        return latents

    def latents_with_silence(self, silent: int) -> Callable[[Clip], np.ndarray]:
        """Return a function that returns the latents of a clip's codes, and ``silent`` latents after these."""
        assert silent <= SILENT_CODES
        return lambda clip: self.latents[clip.shard, clip.index][: len(clip.codes) + silent]

    @cached_property
    def voice_latents(self) -> torch.Tensor:
        return self.autoregressive.voices.detach().cpu()

    @cached_property
    def hifigan(self) -> torch.nn.Module:
        return train_hifigan(
            self.part("hifigan"),
            CONFIGS["hifigan"],
            self.clips(self.held_back_shards),
            self.latents_with_silence(1),
            self.voice_latents.numpy(),
        )

    @cached_property
    def univnet(self) -> torch.nn.Module:
        return train_univnet(self.part("univnet"), CONFIGS["univnet"], self.held_back_shards)

    @cached_property
    def source_filter(self) -> torch.nn.Module:
        def clips() -> list[tuple[np.ndarray, np.ndarray]]:
            latents = self.latents_with_silence(1)
            return [
                (interpolate_latents(latents(clip).astype(np.float32)), self.parameters[clip.shard][clip.index])
                for clip in self.clips(self.held_back_shards)
            ]

        return train_source_filter(self.part("source_filter"), CONFIGS["source_filter"], clips)

    @cached_property
    def mel_source_filter(self) -> torch.nn.Module:
        def clips() -> list[tuple[np.ndarray, np.ndarray]]:
            return [
                (diffusion_mel(wave), rows)
                for shard in self.held_back_shards
                for wave, rows in zip(Shard.load(shard).clips, self.parameters[shard], strict=True)
            ]

        return train_source_filter(self.part("mel_source_filter"), CONFIGS["mel_source_filter"], clips)

    @cached_property
    def parameters(self) -> dict[Path, list[np.ndarray]]:
        """The source-filter parameters of the clips in each held-back shard."""
        return {shard: parameters_of(shard, self.folder / "parameters") for shard in self.held_back_shards}

    @cached_property
    def diffusion(self) -> DenoiserInTraining:
        return train_denoiser(
            self.part("diffusion"),
            CONFIGS["diffusion"],
            self.clips(self.held_back_shards),
            self.latents_with_silence(CONFIGS["autoregressive"].calm_run),
            len(self.voices),
        )

    @cached_property
    def clvp(self) -> torch.nn.Module:
        return train_clvp(
            self.part("clvp"),
            CONFIGS["clvp"],
            CONFIGS["autoregressive"],
            self.clips(self.training_shards),
            self.clips(self.held_back_shards),
        )

    @cached_property
    def recordings(self) -> list[tuple[int, np.ndarray]]:
        return recordings(self.held_back_shards, self.voices, self.recipe.seed)

    @cached_property
    def conditioning_encoder(self) -> torch.nn.Module:
        return train_encoder(
            self.part("conditioning_encoder"),
            ConditioningEncoder(CONFIGS["conditioning_encoder"]),
            lambda: self.recordings,
            lambda audio, rng: conditioning_mel(conditioning_window(audio, rng), self.mel_norms),
            self.voice_latents,
        )

    @cached_property
    def contextual_embedder(self) -> torch.nn.Module:
        return train_encoder(
            self.part("contextual_embedder"),
            ContextualEmbedder(CONFIGS["contextual_embedder"]),
            lambda: self.recordings,
            lambda audio, _: diffusion_mel(diffusion_window(audio)),
            self.diffusion.voices.detach().cpu(),
        )

    @cached_property
    def rlg_auto(self) -> torch.nn.Module:
        return train_converter(self.part("rlg_auto"), CONFIGS["rlg_auto"], self.voice_latents)

    @cached_property
    def rlg_diffuser(self) -> torch.nn.Module:
        return train_converter(self.part("rlg_diffuser"), CONFIGS["rlg_diffuser"], self.diffusion.voices.detach().cpu())
