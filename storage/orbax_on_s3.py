"""Lets Orbax keep checkpoints at s3://, written and read by tensorstore as those at gs://.

Orbax knows one kind of object store, by the scheme gs://. Everything but its choice of a driver and
of a marker object works with any path of epath. So these choices get one more case here: the array
files of an s3:// directory go to tensorstore's s3 driver, and an object marks it as complete.
tests/cloud checks this against the installed version of Orbax.
"""

import functools
import os
from typing import Any

from storage.object_store import filesystem

SCHEME = "s3://"


@functools.cache
def enable() -> None:
    """Adds the case of s3:// to Orbax, in this process."""
    from orbax.checkpoint._src.path import atomicity, atomicity_defaults, gcs_utils
    from orbax.checkpoint._src.serialization import tensorstore_utils

    def on_s3(module, name: str, instead) -> None:
        """Replaces a function for arguments that begin with s3://."""
        usual = getattr(module, name)

        @functools.wraps(usual)
        def either(path, *args, **kwargs):
            if os.fspath(path).startswith(SCHEME):
                return instead(os.fspath(path))
            return usual(path, *args, **kwargs)

        setattr(module, name, either)

    on_s3(tensorstore_utils, "_use_gcs_driver", lambda path: True)  # for a store of objects
    on_s3(tensorstore_utils, "_normalize_path", lambda path: path.rstrip("/"))
    on_s3(gcs_utils, "get_kvstore_for_gcs", kvstore)
    for name in ("get_default_temporary_path_class", "get_item_default_temporary_path_class"):
        on_s3(atomicity_defaults, name, lambda path: atomicity.CommitFileTemporaryPath)


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
