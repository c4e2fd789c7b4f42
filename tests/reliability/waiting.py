"""train.py whose process 1 never finishes loading, so that process 0 waits in its first collective.

Python runs no handler of a signal there.
"""

import runpy
import sys
import time

from input_pipeline import pipeline

if __name__ == "__main__":
    load = pipeline.load

    def slow_load(*arguments, process_index, **options):
        if process_index == 1:
            while True:
                time.sleep(1)
        found = load(*arguments, process_index=process_index, **options)
        print("process 0 has loaded its data", flush=True)
        return found

    pipeline.load = slow_load
    sys.argv[0] = "train.py"
    runpy.run_path("train.py", run_name="__main__")
