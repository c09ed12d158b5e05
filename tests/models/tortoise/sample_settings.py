"""Short texts and settings that the tests of the pipeline share."""

from ane.models.tortoise.diffusion import Diffusion
from ane.models.tortoise.sampling import Sampling
from ane.models.tortoise.settings import Settings

SHORT = Sampling(max_codes=24)
HIFIGAN = Settings(candidates=1, diffusion=None, sampling=SHORT)
DIFFUSION = Settings(candidates=3, diffusion=Diffusion(steps=3, guidance=None), sampling=SHORT)
CHUNKED = Settings(candidates=1, diffusion=None, sampling=SHORT, split=(20, 30))

SENTENCE = "The turtle was first."
THREE_SENTENCES = "The turtle was first. The rabbit came second. The snail was third."  # three chunks of CHUNKED
