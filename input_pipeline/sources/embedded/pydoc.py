"""Python's documentation topics and the source of its standard library, as documents.

A document is one topic or one file. The content, and so the digest, depends on the Python version.
"""

import platform
import sysconfig
import tokenize
from pathlib import Path
from pydoc_data.topics import topics

from input_pipeline.sources.base import Source, Splits, content_digest, split_by_hash

EVAL_SHARE = 0.05  # of the documents
# Directories that are not part of the library itself, and generated tables: character maps in
# encodings, and the topics again in pydoc_data.
LEFT_OUT = {
    "__phello__",
    "encodings",
    "idlelib",
    "lib2to3",
    "pydoc_data",
    "site-packages",
    "dist-packages",
    "test",
    "tests",
    "turtledemo",
}


def load() -> Splits:
    """The topics and the source files as documents; a hash of the text decides the split."""
    documents = [{"name": f"topic {name}", "text": topics[name]} for name in sorted(topics)]
    documents += _standard_library()
    # Split by content, so that equal files are in the same split.
    train, eval_documents = split_by_hash(documents, lambda d: d["text"], EVAL_SHARE)
    description = {
        "python": platform.python_version(),
        "train_bytes": sum(len(d["text"].encode()) for d in train),
        "held_out_bytes": sum(len(d["text"].encode()) for d in eval_documents),
    }
    digest = content_digest(part for d in documents for part in (d["name"], d["text"]))
    return Splits(
        "documents", train, {"held_out": eval_documents}, (), description, digest, "memory"
    )


SOURCE = Source("pydoc", lambda data: load(), "documents")


def _standard_library() -> list[dict[str, str]]:
    root = Path(sysconfig.get_path("stdlib"))
    found = []
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root)
        generated = name.name.startswith("_sysconfigdata") or name.parts[0].startswith("config-")
        if generated or LEFT_OUT.intersection(name.parts):
            continue
        with tokenize.open(path) as file:  # uses the encoding that the file declares
            text = file.read()
        if text:
            found.append({"name": name.as_posix(), "text": text})
    return found
