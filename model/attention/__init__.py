"""The table of attention kinds. A new kind is one file here and one line in this table."""

from collections.abc import Iterator

from model.attention.additive import Additive
from model.attention.chunked import Chunked
from model.attention.dot import Dot
from model.attention.flash import Flash
from model.attention.hierarchical import Hierarchical
from model.attention.interface import FEATURES, AttentionKind
from model.attention.linear import Linear
from model.attention.local import Local
from model.attention.longformer import Longformer
from model.attention.performer import Performer
from model.attention.recurrent import Recurrent

KINDS: dict[str, AttentionKind] = {
    kind.name: kind
    for kind in (
        Dot(),
        Flash(),
        Local(),
        Longformer(),
        Performer(),
        Linear(),
        Chunked(),
        Hierarchical(),
        Recurrent(),
        Additive(),
    )
}


def pattern_of(attention: str) -> tuple[str, ...]:
    """Splits model.attention, such as "local,local,dot". The layers repeat the pattern."""
    return tuple(name.strip() for name in attention.split(","))


def refusals(attention: str, feature: str) -> Iterator[str]:
    """Yields why kinds of a pattern lack a feature. Each reason starts with the kind's name."""
    for name in dict.fromkeys(pattern_of(attention)):
        if name in KINDS and (reason := KINDS[name].refused.get(feature)):
            yield f"model.attention={name} does not go with {FEATURES[feature]}: {reason}"
