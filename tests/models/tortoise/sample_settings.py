"""Provide short texts and settings to the tests of the pipeline."""

from ane.models.tortoise.diffusion import Diffusion
from ane.models.tortoise.sampling import Sampling
from ane.models.tortoise.settings import TortoiseSettings

SHORT = Sampling(max_codes=24)
HIFIGAN = TortoiseSettings(candidates=1, diffusion=None, sampling=SHORT)
DIFFUSION = TortoiseSettings(candidates=3, diffusion=Diffusion(steps=3, guidance=None), sampling=SHORT)
CHUNKED = TortoiseSettings(candidates=1, diffusion=None, sampling=SHORT, split=(20, 30))

SENTENCE = "The turtle was first."
# becomes three chunks with the settings CHUNKED
THREE_SENTENCES = "The turtle was first. The rabbit came second. The snail was third."
