"""A training run: each part reads what earlier parts wrote to the run's folder, and writes its own output there."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import load_file

from ane.audio.mel import conditioning_mel, diffusion_mel
from ane.bundles import Model
from ane.bundles.hashes import sha256_of
from ane.models.tortoise.networks.conditioning import ConditioningEncoder, ContextualEmbedder
from ane.models.tortoise.voice_encoding import conditioning_window, diffusion_window
from ane.system.files import replacing
from ane.text import Tokenizer
from training.candidates import (
    CANDIDATES,
    EXTRA_TEMPERATURE,
    MAX_TEXTS,
    ScoredCandidates,
    sample_candidates,
    score_candidates,
)
from training.clips import Clip, load_clips
from training.decoder import SILENT_CODES, DecoderInTraining, train_decoder, training_sequence
from training.denoiser import DenoiserInTraining, train_denoiser
from training.encoders import recordings, train_converter, train_encoder
from training.listener import Listener, train_listener
from training.quantiser import DONE, Quantiser, train_quantiser, write_codes
from training.ranking import train_clvp
from training.recipe import CONFIGS, ENTRIES, Recipe, tokenizer_json
from training.speech import Flite, clips_in, shard_size, speak_all
from training.text import texts_of_a_run
from training.trainer import Initialise
from training.vocoders import train_hifigan, train_univnet
from training.warm_start import (
    copy_matching_weights,
    describe_earlier_voice,
    open_earlier_voice,
    start_clvp,
    start_decoder,
    start_denoiser,
)

VALIDATION_CLIPS = 320
# in the run's folder: the earlier bundle, its description
EARLIER, INITIALISED_FROM = "earlier_voice", "initialised_from.json"


@dataclass
class TrainingRun:
    """A run in a folder. The parts are properties, computed or loaded from the folder on first use."""

    folder: Path
    recipe: Recipe
    device: str
    flite: Flite
    wordnet: Path
    workers: int

    @property
    def shared_parts(self) -> tuple[str, ...]:
        """The parts that several processes may share."""
        return SHARED

    @property
    def has_data(self) -> bool:
        """Whether what the shared parts are trained on has been written."""
        return (self.folder / "codes" / DONE).exists()

    @cached_property
    def mel_norms(self) -> np.ndarray:
        data = resources.files("ane.models.tortoise") / "data" / "mel_norms.safetensors"
        return load_file(Path(str(data)))["mel_norms"]

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return Tokenizer(tokenizer_json())

    @cached_property
    def earlier_voice(self) -> Model | None:
        earlier = self.recipe.earlier_voice
        return earlier and open_earlier_voice(earlier, self.folder / EARLIER, self.recipe.voices)

    def initialise_with(self, start: Callable[..., None], *arguments: Any) -> Initialise | None:
        """Initial weights from the earlier voice: ``start(module, earlier_voice, *arguments)``."""
        if self.earlier_voice is None:
            return None

        def initialise(module: torch.nn.Module) -> None:
            start(module, self.earlier_voice, *arguments)
            with replacing(self.folder / INITIALISED_FROM) as target:
                target.write_text(json.dumps(describe_earlier_voice(self.earlier_voice, self.recipe.earlier_voice)))

        return initialise

    @cached_property
    def texts(self) -> list[str]:
        """The texts of the training speech. Raises UserError without WordNet."""
        return texts_of_a_run(self.folder, self.wordnet, clips_in(self.recipe.hours), self.recipe.seed)

    @cached_property
    def shards(self) -> list[Path]:
        return speak_all(self.folder / "speech", self.texts, self.recipe.voices, self.flite, self.mel_norms,
                         self.workers)

    @property
    def training_shards(self) -> list[Path]:
        return self.shards[:len(self.shards) - self.held_back_count]

    @property
    def held_back_shards(self) -> list[Path]:
        return self.shards[len(self.shards) - self.held_back_count:]

    @property
    def held_back_count(self) -> int:
        voices = len(self.recipe.voices)
        return max(voices, round(len(self.shards) * self.recipe.held_back) // voices * voices)

    def clips(self, shards: list[Path]) -> list[Clip]:
        return load_clips(shards, [self.codes[shard] for shard in shards], self.recipe.voices, self.tokenizer)

    @property
    def validation_clips(self) -> list[Clip]:
        """About ``VALIDATION_CLIPS`` held-back clips."""
        held_back = self.clips(self.held_back_shards)
        return held_back[::max(1, len(held_back) // VALIDATION_CLIPS)]

    @cached_property
    def quantiser(self) -> Quantiser:
        voices, clips = self.recipe.voices, clips_in(self.recipe.quantiser_hours)
        count = max(len(voices), round(clips / shard_size(len(self.texts))))
        return train_quantiser(self.folder / "quantiser", self.shards[:count], ENTRIES, voices,
                               self.recipe.parts["quantiser"], self.device)

    @cached_property
    def codes(self) -> dict[Path, Path]:
        paths = write_codes(self.folder / "codes", self.quantiser, self.shards, self.recipe.voices, self.workers)
        return dict(zip(self.shards, paths, strict=True))

    @cached_property
    def autoregressive(self) -> DecoderInTraining:
        initialise = self.initialise_with(start_decoder, self.recipe.voices, self.quantiser, self.texts)
        return train_decoder(self.folder / "autoregressive", CONFIGS["autoregressive"],
                             self.clips(self.training_shards), self.validation_clips, len(self.recipe.voices),
                             self.quantiser, self.recipe.parts["autoregressive"], self.device, initialise)

    @cached_property
    def latents(self) -> dict[tuple[Path, int], np.ndarray]:
        """Latents of the held-back clips, (n + 1 + SILENT_CODES, D) float16: codes, stop, silence after it."""
        clips = self.clips(self.held_back_shards)
        rows = self.decoder_output("latents", [len(clips), SILENT_CODES],
                                   lambda decoder: self.compute_latents(decoder, clips))
        return {(clip.shard, clip.index): row.numpy() for clip, row in zip(clips, rows, strict=True)}

    def decoder_output(self, name: str, settings: list[float], compute: Callable[[DecoderInTraining], list]) -> list:
        """``compute(decoder)``, cached in NAME.pt for this decoder's weights and these settings."""
        path, decoder = self.folder / f"{name}.pt", self.autoregressive     # trains it if it is not yet trained
        key = [sha256_of(self.folder / "autoregressive" / "checkpoint.pt"), *settings]
        cached = torch.load(path, weights_only=True) if path.exists() else {}
        if cached.get("key") != key:
            cached = {"key": key, "rows": compute(decoder)}
            with replacing(path) as target:
                torch.save(cached, target)
        return cached["rows"]

    @torch.no_grad()
    def compute_latents(self, decoder: DecoderInTraining, clips: list[Clip]) -> list[torch.Tensor]:
        latents = []
        for clip in clips:
            rows, positions, _, first = training_sequence(clip, CONFIGS["autoregressive"])
            hidden = decoder(*(torch.from_numpy(part)[None].to(self.device) for part in (rows, positions)))
            latents.append(hidden[0, first:].half().cpu())
        return latents

    def latents_with_silence(self, silent: int) -> Callable[[Clip], np.ndarray]:
        """Latents of a clip, ``silent`` of them after its last code."""
        assert silent <= SILENT_CODES
        return lambda clip: self.latents[clip.shard, clip.index][:len(clip.codes) + silent]

    @cached_property
    def voice_latents(self) -> torch.Tensor:
        return self.autoregressive.voices.detach().cpu()

    @cached_property
    def univnet(self) -> torch.nn.Module:
        return train_univnet(self.folder / "univnet", CONFIGS["univnet"], self.held_back_shards,
                             self.recipe.parts["univnet"], self.recipe.crops, self.device,
                             self.initialise_with(copy_matching_weights, "univnet"))

    @cached_property
    def hifigan(self) -> torch.nn.Module:
        return train_hifigan(self.folder / "hifigan", CONFIGS["hifigan"], self.clips(self.held_back_shards),
                             self.latents_with_silence(1), self.voice_latents.numpy(), self.recipe.parts["hifigan"],
                             self.recipe.crops, self.device, self.initialise_with(copy_matching_weights, "hifigan"))

    @cached_property
    def diffusion(self) -> DenoiserInTraining:
        return train_denoiser(self.folder / "diffusion", CONFIGS["diffusion"], self.clips(self.held_back_shards),
                              self.latents_with_silence(CONFIGS["autoregressive"].calm_run), len(self.recipe.voices),
                              self.recipe.parts["diffusion"], self.device,
                              self.initialise_with(start_denoiser, self.recipe.voices))

    @cached_property
    def listener(self) -> Listener:
        return train_listener(self.folder / "listener", self.clips(self.training_shards), self.validation_clips,
                              len(self.recipe.voices), self.recipe.parts["listener"], self.device)

    @cached_property
    def candidates(self) -> list[ScoredCandidates]:
        """Candidates for texts that neither the decoder nor the listener was trained on."""
        clips = self.clips(self.held_back_shards)[:MAX_TEXTS]
        voices = self.voice_latents.numpy()
        rows = self.decoder_output("candidates", [len(clips), CANDIDATES, EXTRA_TEMPERATURE],
                                   lambda decoder: sample_candidates(decoder.network, clips, voices, self.workers))
        return list(score_candidates(self.listener, clips, rows))

    @cached_property
    def clvp(self) -> torch.nn.Module:
        return train_clvp(self.folder / "clvp", CONFIGS["clvp"], CONFIGS["autoregressive"],
                          self.clips(self.training_shards), self.clips(self.held_back_shards),
                          lambda: self.candidates, self.recipe.parts["clvp"], self.device,
                          self.initialise_with(start_clvp))

    @cached_property
    def recordings(self) -> list[tuple[int, np.ndarray]]:
        return recordings(self.held_back_shards, self.recipe.voices, self.recipe.seed)

    @cached_property
    def conditioning_encoder(self) -> torch.nn.Module:
        schedule = self.recipe.parts["conditioning_encoder"]
        rng = np.random.default_rng(schedule.seed)
        mels = [(voice, conditioning_mel(conditioning_window(audio, rng), self.mel_norms))
                for voice, audio in self.recordings]
        return train_encoder(self.folder / "conditioning_encoder", ConditioningEncoder(CONFIGS["conditioning_encoder"]),
                             mels, self.voice_latents, schedule, self.device,
                             self.initialise_with(copy_matching_weights, "conditioning_encoder"))

    @cached_property
    def contextual_embedder(self) -> torch.nn.Module:
        mels = [(voice, diffusion_mel(diffusion_window(audio))) for voice, audio in self.recordings]
        return train_encoder(self.folder / "contextual_embedder", ContextualEmbedder(CONFIGS["contextual_embedder"]),
                             mels, self.diffusion.voices.detach().cpu(), self.recipe.parts["contextual_embedder"],
                             self.device, self.initialise_with(copy_matching_weights, "contextual_embedder"))

    @cached_property
    def rlg_auto(self) -> torch.nn.Module:
        return train_converter(self.folder / "rlg_auto", CONFIGS["rlg_auto"], self.voice_latents,
                               self.recipe.parts["rlg_auto"], self.device)

    @cached_property
    def rlg_diffuser(self) -> torch.nn.Module:
        return train_converter(self.folder / "rlg_diffuser", CONFIGS["rlg_diffuser"],
                               self.diffusion.voices.detach().cpu(), self.recipe.parts["rlg_diffuser"], self.device)


# each needs only parts before it
PARTS = ("texts", "shards", "quantiser", "codes", "autoregressive", "latents", "univnet", "hifigan", "diffusion",
         "listener", "candidates", "clvp", "conditioning_encoder", "contextual_embedder", "rlg_auto", "rlg_diffuser")
# that several processes may share
SHARED = ("autoregressive", "univnet", "hifigan", "diffusion", "listener", "clvp", "conditioning_encoder",
          "contextual_embedder")
