"""train.py with a step that never ends, the fifth."""

import time

from tests.reliability.altered import train_with


def stuck(step):
    def stuck_at_five(loop, state, batch):
        if int(state.step) == 4:
            print("stuck at step 5", flush=True)
            while True:
                time.sleep(1)
        return step(loop, state, batch)

    return stuck_at_five


if __name__ == "__main__":
    train_with(stuck)
