"""Device prefetch: batches on the devices before their step asks for them."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from training.mesh import put_batch

AHEAD = 1  # batches on the devices besides the one that the next step takes


class Batch(NamedTuple):
    """A batch on the host and on the devices."""

    host: Mapping[str, np.ndarray]  # this process's rows
    device: Mapping[str, jax.Array]


def prefetch(batches: Iterable[Mapping[str, np.ndarray]], mesh: Mesh) -> Iterator[Batch]:
    """Yields the same batches in the same order, each put on the devices AHEAD batches early."""
    queue: deque[Batch] = deque()
    for batch in batches:
        queue.append(Batch(batch, put_batch(batch, mesh)))
        if len(queue) > AHEAD:
            yield queue.popleft()
    yield from queue
