"""train.py with a fault in the third step of process 1."""

import jax

from tests.reliability.altered import train_with


def failing(step):
    def fails_at_three(loop, state, batch):
        if jax.process_index() == 1 and int(state.step) == 2:
            raise KeyError("a fault")
        return step(loop, state, batch)

    return fails_at_three


if __name__ == "__main__":
    train_with(failing)
