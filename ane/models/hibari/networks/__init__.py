"""The network of the hibari family."""

from ane.bundles.family import Network
from ane.models.hibari.networks.hibari import Hibari, HibariConfig

NETWORKS = {"hibari": Network("hibari", Hibari, HibariConfig, "hibari's model", half_precision=True, for_speech=True,
                              random=True)}
