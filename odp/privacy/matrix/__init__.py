"""Matrix mechanisms of DP-FTRL: streams of sums with correlated noise, and no assumption about sampling."""

from odp.privacy.events import StreamRelease
from odp.privacy.matrix.banded import BandedMatrix
from odp.privacy.matrix.blt import BufferedMatrix
from odp.privacy.matrix.encoding import Decoder, Encoder, EncoderMatrix, Stream
from odp.privacy.matrix.sensitivity import Participation, ParticipationRecord
from odp.privacy.matrix.tree import TreeMatrix

__all__ = [
    "BandedMatrix",
    "BufferedMatrix",
    "Decoder",
    "Encoder",
    "EncoderMatrix",
    "Participation",
    "ParticipationRecord",
    "Stream",
    "StreamRelease",
    "TreeMatrix",
]
