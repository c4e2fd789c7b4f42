"""An emulator of Cloud Storage on a port of this machine: python -m tests.cloud.gcs_server PORT

It adds to gcp-storage-emulator what its clients rely on: the generation of a downloaded object, and
uploads on the condition that an object has a generation, or does not exist (0). Two addresses are
for tests: /test/faults?status=503&count=3&what=PART fails the next requests whose line contains
PART, and /test/requests answers with the number of requests so far.
"""

import logging
import sys
import time
from http import HTTPStatus
from urllib.parse import parse_qs, urlparse

from gcp_storage_emulator import server
from gcp_storage_emulator.exceptions import NotFound
from gcp_storage_emulator.handlers import objects

state = {"requests": 0, "status": 0, "count": 0, "what": ""}


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


def answer(handler, status: int, text: str = "") -> None:
    handler.rfile.read(int(handler.headers.get("content-length", 0)))
    handler.send_response(status)
    handler.send_header("Content-Length", str(len(text)))
    handler.end_headers()
    handler.wfile.write(text.encode())


def with_faults(handle):
    def wrapped(router, method):
        handler = router._request_handler
        address = urlparse(handler.path)
        if address.path == "/test/faults":
            given = {name: values[0] for name, values in parse_qs(address.query).items()}
            state.update(given, status=int(given["status"]), count=int(given["count"]))
            return answer(handler, 200)
        if address.path == "/test/requests":
            return answer(handler, 200, str(state["requests"]))
        state["requests"] += 1
        if state["count"] and state["what"] in f"{method} {handler.path}":
            state["count"] -= 1
            if state["status"] == 0:  # a slow server
                time.sleep(1.0)
            else:
                return answer(handler, state["status"])
        return handle(router, method)

    return wrapped


if __name__ == "__main__":
    logging.getLogger("gcp_storage_emulator").setLevel(logging.CRITICAL)
    objects.download = with_generation(objects.download)
    objects._media_upload = with_condition(objects._media_upload, lambda request: "")
    objects._multipart_upload = with_condition(
        objects._multipart_upload, lambda request: request.data["meta"].get("name")
    )
    server.Router.handle = with_faults(server.Router.handle)
    server.create_server(
        "127.0.0.1", int(sys.argv[1]), in_memory=True, default_bucket="bucket"
    ).run()
