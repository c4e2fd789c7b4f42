"""Makes fixtures/: a small model of each architecture, and what transformers makes of it.

pip install -e '.[oracle]'
python -m tests.pretrained.make_fixtures             all of them
python -m tests.pretrained.make_fixtures NAME ...    only these, such as a new one
"""

import shutil
import sys
from pathlib import Path

from tests.pretrained.transformers_models import EXAMPLES, save

FIXTURES = Path(__file__).parent / "fixtures"
SEED = 7


def main() -> None:
    for name in sys.argv[1:] or EXAMPLES:
        shutil.rmtree(FIXTURES / name, ignore_errors=True)
        save(name, SEED, FIXTURES / name)


if __name__ == "__main__":
    main()
