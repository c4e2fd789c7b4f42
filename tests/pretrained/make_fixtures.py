"""Makes fixtures/: a small model of each architecture, and what transformers makes of it.

pip install -e '.[oracle]'
python -m tests.pretrained.make_fixtures
"""

import shutil
from pathlib import Path

from tests.pretrained.transformers_models import EXAMPLES, save

FIXTURES = Path(__file__).parent / "fixtures"
SEED = 7


def main() -> None:
    shutil.rmtree(FIXTURES, ignore_errors=True)
    for name in EXAMPLES:
        save(name, SEED, FIXTURES / name)


if __name__ == "__main__":
    main()
