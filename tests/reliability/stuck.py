"""train.py with a step that never ends, the fifth."""

import runpy
import sys
import time

import loop

_step = loop.Loop._step


def stuck(self, state, batch):
    if int(state.step) == 4:
        print("stuck at step 5", flush=True)
        while True:
            time.sleep(1)
    return _step(self, state, batch)


if __name__ == "__main__":
    loop.Loop._step = stuck
    sys.argv[0] = "train.py"
    runpy.run_path("train.py", run_name="__main__")
