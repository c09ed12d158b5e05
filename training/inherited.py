"""What an earlier voice has learned, for the networks of a new one to begin with.

A new quantiser has codes of its own. Let the earlier voice speak and listen to it with the new quantiser: how often a
new code is heard where an earlier one was spoken says which of the earlier embeddings it begins as.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ane.audio import resample
from ane.backends.torch.backend import TorchBackend
from ane.bundles import Model
from ane.bundles.bundle import Bundle
from ane.models.tortoise.decoding import Chunk, decode
from ane.models.tortoise.embeddings import text_tokens
from ane.models.tortoise.networks.autoregressive import UnifiedVoiceConfig
from ane.models.tortoise.result import SAMPLE_RATE
from ane.models.tortoise.sampling import by_inverse_cdf
from ane.models.tortoise.settings import Settings
from ane.models.tortoise.vocoding import hifigan_sound
from ane.system.errors import UserError
from ane.text import Tokenizer
from ane.voices import load_voice
from training.decoder import DecoderInTraining
from training.denoiser import DenoiserInTraining
from training.quantiser import Quantiser
from training.ranking import CLVPInTraining
from training.recipe import C, D
from training.speech import RATE, code_mel

LISTENED = 250          # sentences that the earlier voice speaks, in each of its voices
LANES = 32
UNHEARD = 0.02          # weight of the mean of all earlier embeddings in a new one
CODED = ("mel_embedding.weight", "mel_head.weight", "mel_head.bias")


def copy_fitting(network: nn.Module, earlier: Model, name: str, but: Sequence[str] = ()) -> None:
    """Copy every weight of the earlier network that has its place in the new one, ``but`` those of these keys."""
    own = network.state_dict()
    fitting = {key: tensor.float() for key, tensor in earlier.tensors(name).items()
               if key not in but and key in own and own[key].shape == tensor.shape}
    network.load_state_dict({**own, **fitting})


def inherit_clvp(model: CLVPInTraining, earlier: Model) -> None:
    """All but the embeddings of codes, which are other codes now."""
    copy_fitting(model.network, earlier, "clvp", ("speech_emb.weight",))


def inherit_denoiser(model: DenoiserInTraining, earlier: Model, voices: Sequence[str]) -> None:
    copy_fitting(model.network, earlier, "diffusion")
    with torch.no_grad():
        model.voices.copy_(latents(earlier, voices)[1])


def inherit_decoder(model: DecoderInTraining, earlier: Model, voices: Sequence[str], quantiser: Quantiser,
                    texts: Sequence[str]) -> None:
    """Weights and voices of the earlier decoder; embeddings of codes, and what predicts them, by how they sound."""
    copy_fitting(model.network, earlier, "autoregressive", CODED)
    old, new = earlier.config("autoregressive"), model.config
    assert isinstance(old, UnifiedVoiceConfig)
    shares = heard_as(earlier, voices, quantiser, texts[:LISTENED])
    tensors, own = earlier.tensors("autoregressive"), dict(model.network.named_parameters())
    with torch.no_grad():
        model.voices.copy_(latents(earlier, voices)[0])
        for key in CODED:
            before = tensors[key].float().cpu()
            own[key][:new.calm_token] = torch.tensordot(shares, before[:old.calm_token], dims=1)
            for name in ("calm_token", "start_mel_token", "stop_mel_token"):
                own[key][getattr(new, name)] = before[getattr(old, name)]


def check_fits(earlier: Model, voices: Sequence[str]) -> None:
    """Raises UserError: the earlier voice lacks one of ``voices``, or its latents have other widths."""
    lacking = [name for name in voices
               if earlier.voices is None or not (earlier.voices / f"{name}.safetensors").exists()]
    if lacking or earlier.widths != (D, 2 * C):
        raise UserError(f"--begin-as {earlier.name}: it must have the voices {' and '.join(voices)}, and latents of "
                        f"{D} and {2 * C} numbers, as this one will")


def told_of(earlier: Model) -> dict[str, Any]:
    """Which voice the earlier one is, and how it was trained, as far as it says."""
    stated = earlier.manifest.source if isinstance(earlier, Bundle) else {}
    return {"bundle": earlier.identity,
            **{key: stated[key] for key in ("began_as", "device", "steps", "seconds") if key in stated}}


def latents(earlier: Model, voices: Sequence[str]) -> tuple[Tensor, Tensor]:
    """The latents of the earlier voices, for the decoder (voices, D) and for diffusion (voices, 2C)."""
    kept = [load_voice(earlier.voices / f"{name}.safetensors", name) for name in voices]
    return tuple(torch.from_numpy(np.concatenate(part))
                 for part in ([voice.ar for voice in kept], [voice.diffusion for voice in kept]))


def heard_as(earlier: Model, voices: Sequence[str], quantiser: Quantiser, texts: Sequence[str]) -> Tensor:
    """(new codes, earlier codes) float32: how much of a new code is each earlier one; rows sum to 1."""
    config, backend = earlier.config("autoregressive"), TorchBackend(earlier, "cpu")
    tokenizer, settings = Tokenizer(earlier.tokenizer), Settings.of(model=earlier.settings)
    together = torch.zeros(len(quantiser.entries), config.calm_token)
    for index, name in enumerate(voices):
        voice = load_voice(earlier.voices / f"{name}.safetensors", name)
        chunks = [Chunk(voice.ar, text_tokens(tokenizer.encode(text), config),
                        [by_inverse_cdf(np.random.default_rng([index, number]))]) for number, text in enumerate(texts)]
        for [reading] in decode(backend, chunks, config, settings.sampling, LANES, rewritten=False):
            audio = resample(hifigan_sound(backend, voice.ar, reading.hidden), SAMPLE_RATE, RATE)
            mel = torch.from_numpy(code_mel(audio, earlier.mel_norms))[None]
            with torch.no_grad():
                heard = quantiser.codes(mel, torch.tensor([index]))[0]
            spoken = torch.from_numpy(np.asarray(reading.codes, dtype=np.int64))
            count = min(len(heard), len(spoken))
            kept = spoken[:count] < config.calm_token
            together.index_put_((heard[:count][kept], spoken[:count][kept]), torch.ones(int(kept.sum())),
                                accumulate=True)
    everything = together.sum(dim=0)
    together += UNHEARD * everything / everything.sum()
    return together / together.sum(dim=1, keepdim=True)
