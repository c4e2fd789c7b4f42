"""The table of token mixers. A new one is one file here and one line in this table.

Self-attention is not in it: it has kinds of its own, in model/attention.
"""

from collections.abc import Iterator

from model.mixers.conv import Conv
from model.mixers.gru import Gru
from model.mixers.lstm import Lstm
from model.mixers.mean import Mean
from model.mixers.mixer import FEATURES, Mixer
from model.mixers.rnn import Rnn

ATTENTION = "attention"  # the value of model.mixer that is none of these
MIXERS: dict[str, Mixer] = {mixer.name: mixer for mixer in (Rnn(), Gru(), Lstm(), Conv(), Mean())}


def mixer_refusals(name: str, feature: str) -> Iterator[str]:
    """Yields why a mixer lacks a feature. The reason starts with the mixer's name."""
    if name in MIXERS and (reason := MIXERS[name].refused.get(feature)):
        yield f"model.mixer={name} does not go with {FEATURES[feature]}: {reason}"
