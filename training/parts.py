"""The parts of the training, each finding what those before it left in the folder, and leaving its own."""

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

from ane.bundles import Model
from ane.bundles.hashes import sha256_of
from ane.system.errors import UserError
from ane.system.files import replacing
from ane.text import Tokenizer
from training.clips import Clip, load_clips
from training.decoder import CALM, DecoderInTraining, columns_of, train_decoder
from training.denoiser import DenoiserInTraining, train_denoiser
from training.encoders import (
    recordings,
    train_conditioning_encoder,
    train_contextual_embedder,
    train_converter,
)
from training.inherited import copy_fitting, inherit_clvp, inherit_decoder, inherit_denoiser, told_of
from training.listener import Listener, train_listener
from training.loop import Begin
from training.quantiser import Quantiser, train_quantiser, write_codes
from training.ranking import train_clvp
from training.readings import READ, READINGS, WARMER, Read, listened, read_texts
from training.recipe import CONFIGS, ENTRIES, Recipe, tokenizer_json
from training.speech import Flite, read_all, shard_size
from training.text import read_text, write_text
from training.vocoders import train_hifigan, train_univnet

CLIP_SECONDS = 2.82         # mean, to turn hours into clips
CHECKED = 320               # clips of the validation
BEGAN_AS = "began_as.json"  # in the folder of a run: what is known of the voice that its networks began as


@dataclass
class Work:
    """A training run in a folder.

    Attributes:
        earlier: a voice whose networks those of this one begin as, where they fit.
    """

    out: Path
    recipe: Recipe
    device: str
    flite: Flite
    wordnet: Path
    workers: int
    earlier: Model | None = None

    @cached_property
    def mel_norms(self) -> np.ndarray:
        return load_file(Path(str(resources.files("ane.models.tortoise") / "data" / "mel_norms.safetensors")))["mel_norms"]

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return Tokenizer(tokenizer_json())

    def begin(self, inherit: Callable[..., None], *more: Any) -> Begin | None:
        """What gives a part what the earlier voice has learned: ``inherit(part, earlier voice, *more)``."""
        if self.earlier is None:
            return None

        def inherited(part: torch.nn.Module) -> None:
            inherit(part, self.earlier, *more)
            with replacing(self.out / BEGAN_AS) as target:
                target.write_text(json.dumps(told_of(self.earlier)))

        return inherited

    @cached_property
    def texts(self) -> list[str]:
        path, count = self.out / "text.txt", round(self.recipe.hours * 3600 / CLIP_SECONDS)
        if not path.exists():
            if not (self.wordnet / "data.noun").exists():
                raise UserError(f"{self.wordnet}: no WordNet here; install Debian's wordnet-base or name its folder "
                                "with --wordnet")
            write_text(path, self.wordnet, count, self.recipe.seed)
        return read_text(path, count)

    @cached_property
    def shards(self) -> list[Path]:
        return read_all(self.out / "speech", self.texts, self.recipe.voices, self.flite, self.mel_norms, self.workers)

    @property
    def learned_shards(self) -> list[Path]:
        return self.shards[:len(self.shards) - self.held_back]

    @property
    def held_back_shards(self) -> list[Path]:
        return self.shards[len(self.shards) - self.held_back:]

    @property
    def held_back(self) -> int:
        voices = len(self.recipe.voices)
        return max(voices, round(len(self.shards) * self.recipe.held_back) // voices * voices)

    def clips(self, shards: list[Path]) -> list[Clip]:
        return load_clips(shards, [self.codes[shard] for shard in shards], self.recipe.voices, self.tokenizer)

    @property
    def checked(self) -> list[Clip]:
        held_back = self.clips(self.held_back_shards)
        return held_back[::max(1, len(held_back) // CHECKED)]

    @cached_property
    def quantiser(self) -> Quantiser:
        voices, clips = self.recipe.voices, self.recipe.quantised * 3600 / CLIP_SECONDS
        count = max(len(voices), round(clips / shard_size(len(self.texts))))
        return train_quantiser(self.out / "quantiser", self.shards[:count], ENTRIES, voices,
                               self.recipe.plans["quantiser"], self.device)

    @cached_property
    def codes(self) -> dict[Path, Path]:
        """The file of codes of every shard."""
        written = write_codes(self.out / "codes", self.quantiser, self.shards, self.recipe.voices, self.workers)
        return dict(zip(self.shards, written, strict=True))

    @cached_property
    def autoregressive(self) -> DecoderInTraining:
        begin = self.begin(inherit_decoder, self.recipe.voices, self.quantiser, self.texts)
        return train_decoder(self.out / "autoregressive", CONFIGS["autoregressive"], self.clips(self.learned_shards),
                             self.checked, len(self.recipe.voices), self.quantiser, self.recipe.plans["autoregressive"],
                             self.device, begin)

    @cached_property
    def latents(self) -> dict[tuple[Path, int], np.ndarray]:
        """Latents of the held-back clips, (n + 1 + CALM, D) float16: of the codes, the stop and the silence after it.

        Made once the decoder is trained.
        """
        clips = self.clips(self.held_back_shards)
        rows = self.kept("latents", [len(clips), CALM], lambda decoder: self.latents_of(decoder, clips))
        return {(clip.shard, clip.index): row.numpy() for clip, row in zip(clips, rows, strict=True)}

    def kept(self, name: str, how: list[float], make: Callable[[DecoderInTraining], list]) -> list:
        """What was made with the decoder, from the file ``name``.pt if this very one made it, and so: ``how``."""
        path, decoder = self.out / f"{name}.pt", self.autoregressive        # trained now, if it was not
        made_by = [sha256_of(self.out / "autoregressive" / "checkpoint.pt"), *how]
        made = torch.load(path, weights_only=True) if path.exists() else {}
        if made.get("made_by") != made_by:
            made = {"made_by": made_by, "rows": make(decoder)}
            with replacing(path) as target:
                torch.save(made, target)
        return made["rows"]

    @torch.no_grad()
    def latents_of(self, decoder: DecoderInTraining, clips: list[Clip]) -> list[torch.Tensor]:
        made = []
        for clip in clips:
            columns, positions, _, first = columns_of(clip, CONFIGS["autoregressive"])
            hidden = decoder(*(torch.from_numpy(part)[None].to(self.device) for part in (columns, positions)))
            made.append(hidden[0, first:].half().cpu())
        return made

    def latents_to(self, calm: int) -> Callable[[Clip], np.ndarray]:
        """Latents of a clip up to ``calm`` positions after its last code."""
        assert calm <= CALM
        return lambda clip: self.latents[clip.shard, clip.index][:len(clip.codes) + calm]

    @cached_property
    def voice_latents(self) -> torch.Tensor:
        return self.autoregressive.voices.detach().cpu()

    @cached_property
    def univnet(self) -> torch.nn.Module:
        return train_univnet(self.out / "univnet", CONFIGS["univnet"], self.held_back_shards,
                             self.recipe.plans["univnet"], self.recipe.batch, self.device,
                             self.begin(copy_fitting, "univnet"))

    @cached_property
    def hifigan(self) -> torch.nn.Module:
        return train_hifigan(self.out / "hifigan", CONFIGS["hifigan"], self.clips(self.held_back_shards),
                             self.latents_to(1), self.voice_latents.numpy(), self.recipe.plans["hifigan"],
                             self.recipe.batch, self.device, self.begin(copy_fitting, "hifigan"))

    @cached_property
    def diffusion(self) -> DenoiserInTraining:
        return train_denoiser(self.out / "diffusion", CONFIGS["diffusion"], self.clips(self.held_back_shards),
                              self.latents_to(CONFIGS["autoregressive"].calm_run), len(self.recipe.voices),
                              self.recipe.plans["diffusion"], self.device,
                              self.begin(inherit_denoiser, self.recipe.voices))

    @cached_property
    def listener(self) -> Listener:
        return train_listener(self.out / "listener", self.clips(self.learned_shards), self.checked,
                              len(self.recipe.voices), self.recipe.plans["listener"], self.device)

    @cached_property
    def readings(self) -> list[Read]:
        """What the decoder makes of texts that are new to it, and to the listener."""
        clips = self.clips(self.held_back_shards)[:READ]
        rows = self.kept("readings", [len(clips), READINGS, WARMER],
                         lambda decoder: read_texts(decoder.network, clips, self.voice_latents.numpy(), self.workers))
        return list(listened(self.listener, clips, rows))

    @cached_property
    def clvp(self) -> torch.nn.Module:
        return train_clvp(self.out / "clvp", CONFIGS["clvp"], CONFIGS["autoregressive"],
                          self.clips(self.learned_shards), self.clips(self.held_back_shards), lambda: self.readings,
                          self.recipe.plans["clvp"], self.device, self.begin(inherit_clvp))

    @cached_property
    def heard(self) -> list[tuple[int, np.ndarray]]:
        return recordings(self.held_back_shards, self.recipe.voices, self.recipe.seed)

    @cached_property
    def conditioning_encoder(self) -> torch.nn.Module:
        return train_conditioning_encoder(
            self.out / "conditioning_encoder", CONFIGS["conditioning_encoder"], self.heard, self.voice_latents,
            self.mel_norms, self.recipe.plans["conditioning_encoder"], self.device,
            self.begin(copy_fitting, "conditioning_encoder"))

    @cached_property
    def contextual_embedder(self) -> torch.nn.Module:
        return train_contextual_embedder(
            self.out / "contextual_embedder", CONFIGS["contextual_embedder"], self.heard,
            self.diffusion.voices.detach().cpu(), self.recipe.plans["contextual_embedder"], self.device,
            self.begin(copy_fitting, "contextual_embedder"))

    @cached_property
    def rlg_auto(self) -> torch.nn.Module:
        return train_converter(self.out / "rlg_auto", CONFIGS["rlg_auto"], self.voice_latents,
                               self.recipe.plans["rlg_auto"], self.device)

    @cached_property
    def rlg_diffuser(self) -> torch.nn.Module:
        return train_converter(self.out / "rlg_diffuser", CONFIGS["rlg_diffuser"],
                               self.diffusion.voices.detach().cpu(), self.recipe.plans["rlg_diffuser"], self.device)


# in the order of their needs
PARTS = ("texts", "shards", "quantiser", "codes", "autoregressive", "latents", "univnet", "hifigan", "diffusion",
         "listener", "readings", "clvp", "conditioning_encoder", "contextual_embedder", "rlg_auto", "rlg_diffuser")
# those that several processes may share
SHARED = ("autoregressive", "univnet", "hifigan", "diffusion", "listener", "clvp", "conditioning_encoder",
          "contextual_embedder")
