"""An emulator of Cloud Storage on a port of this machine: python -m tests.cloud.gcs_server PORT

It adds to gcp-storage-emulator what its clients rely on: the generation of a downloaded object, and
uploads on the condition that an object has a generation, or does not exist (0).
"""

import logging
import sys
from http import HTTPStatus

from gcp_storage_emulator import server
from gcp_storage_emulator.exceptions import NotFound
from gcp_storage_emulator.handlers import objects


def generation(storage, bucket: str, name: str) -> str:
    try:
        return str(storage.get_file_obj(bucket, name)["generation"])
    except NotFound:
        return "0"


def with_generation(download):
    def wrapped(request, response, storage, *args, **kwargs):
        download(request, response, storage, *args, **kwargs)
        found = generation(storage, request.params["bucket_name"], request.params["object_id"])
        response["x-goog-generation"] = found

    return wrapped


def with_condition(upload, name_of):
    def wrapped(request, response, storage):
        expected = request.query.get("ifGenerationMatch")
        name = request.query["name"][0] if "name" in request.query else name_of(request)
        if expected and generation(storage, request.params["bucket_name"], name) != expected[0]:
            response.status = HTTPStatus.PRECONDITION_FAILED
            return
        upload(request, response, storage)

    return wrapped


if __name__ == "__main__":
    logging.getLogger("gcp_storage_emulator").setLevel(logging.CRITICAL)
    objects.download = with_generation(objects.download)
    objects._media_upload = with_condition(objects._media_upload, lambda request: "")
    objects._multipart_upload = with_condition(
        objects._multipart_upload, lambda request: request.data["meta"].get("name")
    )
    server.create_server(
        "127.0.0.1", int(sys.argv[1]), in_memory=True, default_bucket="bucket"
    ).run()
