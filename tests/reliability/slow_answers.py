"""generate.py that takes its time after each batch."""

import runpy
import sys
import time

from inference import predictors

if __name__ == "__main__":
    in_batches = predictors.in_batches

    def slow_batches(*arguments):
        for number, batch in enumerate(in_batches(*arguments)):
            if number:
                time.sleep(0.5)
            yield batch

    predictors.in_batches = slow_batches
    sys.argv[0] = "generate.py"
    runpy.run_path("generate.py", run_name="__main__")
