"""A process that makes tries, one for each line of standard input: NAME SEED DIRECTORY.

Its argument is the module with the tries. It answers each with a line of JSON. A try that needs
much more memory than the process had before gets a MemoryError.
"""

import contextlib
import faulthandler
import importlib
import io
import json
import os
import resource
import signal
import sys
import traceback
import warnings
from pathlib import Path

GROWTH = 4 * 2**30  # bytes


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print does not disturb the answers
    warnings.simplefilter("ignore")
    tries = importlib.import_module(sys.argv[1])
    tries.prepare()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    print(json.dumps({"ready": True}), file=answers)
    for line in sys.stdin:
        name, seed, directory = line.split(maxsplit=2)
        limit_memory()
        answer = {"accepted": None}
        try:
            with contextlib.redirect_stderr(io.StringIO()):
                answer["accepted"] = tries.attempt(name, int(seed), Path(directory.rstrip("\n")))
        except (Exception, SystemExit):
            answer["traceback"] = traceback.format_exc()
        except BaseException as error:  # tokenizers' PanicException
            answer["traceback"] = f"{traceback.format_exc()}\n{type(error).__name__}"
        print(json.dumps(answer), file=answers)


def limit_memory() -> None:
    """Lets the process grow by GROWTH."""
    status = Path("/proc/self/status").read_text()
    held = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmData:"))
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (held * 1024 + GROWTH, hard))


if __name__ == "__main__":
    main()
