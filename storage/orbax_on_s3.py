"""Lets Orbax keep checkpoints at s3://, written and read by tensorstore as those at gs://.

Orbax knows one kind of object store, by the scheme gs://. Everything but its choice of a driver and
of a marker object works with any path of epath. So these choices get one more case here: the array
files of an s3:// directory go to tensorstore's s3 driver, and an object marks it as complete.
tests/cloud checks this against the installed version of Orbax.
"""

import functools
import importlib.metadata
import os
from collections.abc import Callable
from types import ModuleType
from typing import Any

from experiment.schema import ConfigError
from storage.object_store import filesystem

SCHEME = "s3://"
TESTED = "0.12.8"  # the version of Orbax whose functions these are


@functools.cache
def enable() -> None:
    """Adds the case of s3:// to Orbax, in this process."""
    try:
        from orbax.checkpoint._src.path import atomicity, atomicity_defaults, gcs_utils
        from orbax.checkpoint._src.serialization import tensorstore_utils

        marker = atomicity.CommitFileTemporaryPath
        _on_s3(tensorstore_utils, "_use_gcs_driver", lambda path: True)  # or a store like it
        _on_s3(tensorstore_utils, "_normalize_path", lambda path: path.rstrip("/"))
        _on_s3(gcs_utils, "get_kvstore_for_gcs", kvstore)
        for what in ("get_default", "get_item_default"):
            _on_s3(atomicity_defaults, f"{what}_temporary_path_class", lambda path: marker)
    except (ImportError, AttributeError) as error:
        version = importlib.metadata.version("orbax-checkpoint")
        raise ConfigError(
            f"runs at s3:// need another version than orbax-checkpoint {version} ({error}): "
            f"pip install orbax-checkpoint=={TESTED}"
        ) from error


def _on_s3(module: ModuleType, name: str, instead: Callable[[str], Any]) -> None:
    """Replaces a function of a module for a first argument that begins with s3://."""
    usual = getattr(module, name)

    @functools.wraps(usual)
    def either(path, *args, **kwargs):
        if os.fspath(path).startswith(SCHEME):
            return instead(os.fspath(path))
        return usual(path, *args, **kwargs)

    setattr(module, name, either)


def kvstore(url: str) -> dict[str, Any]:
    """Returns tensorstore's spec for a URL, with the server and the region that s3fs uses."""
    files = filesystem(url)
    files.connect()
    client = files.s3.meta
    bucket, _, path = url.removeprefix(SCHEME).partition("/")
    spec: dict[str, Any] = {"driver": "s3", "bucket": bucket, "path": path}
    if "amazonaws.com" not in client.endpoint_url:  # for Amazon, tensorstore finds out itself
        spec |= {"endpoint": client.endpoint_url, "aws_region": client.region_name or "us-east-1"}
    if os.environ.get("AWS_ACCESS_KEY_ID"):
        # The search for other credentials complains on stderr about files that are not there.
        spec["aws_credentials"] = {"type": "environment"}
    return spec
