"""Files of models on the Hugging Face hub, by address: hf://ORG/NAME[@REVISION][/SUBDIRECTORY].

huggingface_hub downloads to its own cache (HF_HOME), one file at a time. It compares sizes, and for
files from Xet storage also contents. Here every file is compared with the hub's own hash whenever
it is used: sha256 for large files, the git blob's sha1 for small ones. The hashes of a revision are
stored, so that the cache can be checked, and is known to be complete, without the network.
"""

import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import re
import urllib.parse
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from experiment.schema import ConfigError

SCHEME = "hf://"
ADDRESS = re.compile(r"hf://([^/@]+)/([^/@]+)(?:@([^/@]+))?(?:/+(.*?))?/*")
NAME = re.compile(r"[A-Za-z0-9_]([\w.-]*\w)?")
COMMIT = re.compile(r"[0-9a-f]{40}")
OTHER_KINDS = ("datasets", "spaces", "buckets", "kernels")  # hf://datasets/ORG/NAME is no model
LIBRARY = "backbone"  # the name of our directory in huggingface_hub's cache of assets
CHUNK = 2**22  # bytes that are hashed at a time
MOST_LISTED = 8
# Models that once had no owner, which many texts still call by their old names.
OWNERS = {
    r"bert-(base|large)-.*": "google-bert",
    r"gpt2(-medium|-large|-xl)?": "openai-community",
    r"t5-(small|base|large|3b|11b)": "google-t5",
    r"(xlm-)?roberta-(base|large).*|xlm-.*|camembert-base": "FacebookAI",
    r"distil(bert|roberta|gpt2).*": "distilbert",
}
LOG_IN = "log in with `hf auth login`, or set HF_TOKEN"


@dataclasses.dataclass(frozen=True)
class HubAddress:
    """A model, or a directory of its repository, at a revision."""

    repo: str
    revision: str = "main"
    subdirectory: str = ""

    def __str__(self) -> str:
        revision = "" if self.revision == "main" else f"@{urllib.parse.quote(self.revision, '')}"
        below = f"/{self.subdirectory}" if self.subdirectory else ""
        return f"{SCHEME}{self.repo}{revision}{below}"


@dataclasses.dataclass(frozen=True)
class HubFile:
    """What the hub says of a file. It has one of the two hashes; the other is ""."""

    size: int
    sha256: str
    git_sha1: str


@dataclasses.dataclass(frozen=True)
class Listing:
    """The files of a repository at a commit, by name."""

    repo: str
    commit: str
    files: Mapping[str, HubFile]


def is_hub_address(path: str | os.PathLike) -> bool:
    """Whether a path names a model on the hub."""
    return os.fspath(path).startswith(SCHEME)


def spelling(name: str) -> str:
    """The address of a model that is called by NAME or ORG/NAME."""
    if "/" in name:
        return SCHEME + name
    owners = (owner for pattern, owner in OWNERS.items() if re.fullmatch(pattern, name))
    return f"{SCHEME}{next(owners, 'OWNER')}/{name}"


def parse(key: str, text: str) -> HubAddress:
    """Reads an address; `key` is the flag or config key, for errors."""
    found = ADDRESS.fullmatch(text)
    if not found:
        name = text.removeprefix(SCHEME).strip("/")
        meant = f"; did you mean {spelling(name)}?" if NAME.fullmatch(name) else ""
        raise ConfigError(
            f"{key}={text} is no address of a model; write hf://ORG/NAME, "
            f"hf://ORG/NAME@REVISION or hf://ORG/NAME/SUBDIRECTORY{meant}"
        )
    owner, name, revision, below = found.groups()
    if owner in OTHER_KINDS:
        raise ConfigError(f"{key}={text} is not a model; write hf://ORG/NAME")
    is_name = all(NAME.fullmatch(each) and ".." not in each for each in (owner, name))
    if not is_name or ".." in Path(below or "").parts:
        raise ConfigError(f"{key}={text} is no valid name; letters, digits, - _ and . are allowed")
    revision = urllib.parse.unquote(revision) if revision else "main"
    return HubAddress(f"{owner}/{name}", revision, below or "")


def pinned(key: str, text: str) -> HubAddress:
    """The address with the commit that its revision stands for now."""
    place = parse(key, text)
    return dataclasses.replace(place, revision=listing(key, place).commit)


def assets_directory(repo: str, what: str) -> Path:
    """A directory for files that are made here from a repository, in the hub's cache of assets."""
    from huggingface_hub import constants

    directory = Path(constants.HF_ASSETS_CACHE, LIBRARY, repo.replace("/", "--"), what)
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def listing(key: str, place: HubAddress) -> Listing:
    """The files of the repository. Within a process, a revision is asked for once."""
    with refusals(key, place):
        return _listing(place.repo, place.revision)


@functools.cache
def _listing(repo: str, revision: str) -> Listing:
    from huggingface_hub import HfApi

    directory = assets_directory(repo, "listings")
    stored = directory / f"{urllib.parse.quote(revision, '')}.json"
    if COMMIT.fullmatch(revision) and stored.exists():
        return _read(repo, stored)  # a commit never changes
    try:
        info = HfApi().model_info(repo, revision=revision, files_metadata=True)
    except Exception as error:
        if not (_is_unreachable(error) and stored.exists()):
            raise
        return _read(repo, stored)
    files = {
        each.rfilename: HubFile(
            each.size or 0,
            each.lfs.sha256 if each.lfs else "",
            "" if each.lfs else (each.blob_id or ""),
        )
        for each in info.siblings or ()
    }
    found = Listing(repo, info.sha, files)
    for path in {stored, directory / f"{info.sha}.json"}:
        unfinished = path.with_name(f"{path.name}.{os.getpid()}")
        unfinished.write_text(json.dumps(dataclasses.asdict(found)))
        unfinished.replace(path)
    return found


def _read(repo: str, stored: Path) -> Listing:
    content = json.loads(stored.read_text())
    return Listing(
        repo, content["commit"], {name: HubFile(**each) for name, each in content["files"].items()}
    )


def names(key: str, place: HubAddress) -> set[str]:
    """The names of the files at an address, relative to it; refuses a directory without files."""
    files = listing(key, place).files
    start = f"{place.subdirectory}/" if place.subdirectory else ""
    found = {name.removeprefix(start) for name in files if name.startswith(start)}
    if not found:
        directories = sorted({name.partition("/")[0] for name in files if "/" in name})
        has = f"it has {', '.join(directories[:MOST_LISTED])}" if directories else "it has none"
        raise ConfigError(
            f"{key}={place}: the repository has no directory {place.subdirectory}; {has}"
            if place.subdirectory
            else f"{key}={place}: the repository has no files"
        )
    return found


def fetch(key: str, place: HubAddress, wanted: Iterable[str]) -> Path:
    """Downloads files, unless the cache has them; returns the directory that stands for `place`.

    `wanted` are names relative to the address. Each file is checked before this returns. A broken
    one is downloaded once more; if that is broken too, it is removed from the cache and refused.
    """
    found = listing(key, place)
    start = f"{place.subdirectory}/" if place.subdirectory else ""
    directory = None
    for relative in wanted:
        name = start + relative
        with refusals(key, place, name):
            path = _download(found, name)
            if fault := _fault(path, found.files[name]):
                with contextlib.suppress(ValueError):  # which is raised if the hub is offline
                    path = _download(found, name, again=True)
                if fault := _fault(path, found.files[name]):
                    path.resolve().unlink()
                    raise ConfigError(f"{key}={place}: {name} {fault}; run this again")
        directory = path.parents[relative.count("/")]
    if directory is None:
        raise ValueError("nothing to fetch")
    return directory


def _download(found: Listing, name: str, *, again: bool = False) -> Path:
    from huggingface_hub import hf_hub_download

    path = hf_hub_download(found.repo, name, revision=found.commit, force_download=again)
    return Path(path)


def _fault(path: Path, file: HubFile) -> str:
    """What is wrong with a file, or ""."""
    size = path.stat().st_size
    if size != file.size:
        return f"is broken: it has {size:,} bytes, and the hub says {file.size:,}"
    expected = file.sha256 or file.git_sha1
    digest = hashlib.sha256() if file.sha256 else _hash_of_a_git_object(size)
    with path.open("rb") as opened:
        while data := opened.read(CHUNK):
            digest.update(data)
    if digest.hexdigest() == expected:
        return ""
    kind = "sha256" if file.sha256 else "git sha1"
    return f"is broken: its {kind} is {digest.hexdigest()[:12]}…, and the hub says {expected[:12]}…"


def _hash_of_a_git_object(size: int) -> Any:
    """The hash of a git blob with so many bytes, before its content: git hashes a header first."""
    return hashlib.sha1(f"blob {size}\0".encode(), usedforsecurity=False)


def _is_unreachable(error: Exception) -> bool:
    """Whether the hub could not be asked, or could not answer."""
    from huggingface_hub.errors import HfHubHTTPError

    if isinstance(error, HfHubHTTPError):
        return error.response.status_code >= 500 or error.response.status_code == 429
    return isinstance(error, OSError) or _is_from_client(error)


def _is_from_client(error: BaseException) -> bool:
    return type(error).__module__.startswith(("http", "huggingface_hub", "hf_xet"))


@contextlib.contextmanager
def refusals(
    key: str, place: HubAddress, file: str = "", *, to_write: bool = False
) -> Iterator[None]:
    """Turns errors of the hub and of the network into ConfigErrors of one line."""
    from huggingface_hub import constants, errors

    at = f"{key}={place}"
    file = f": {file}" if file else ""
    try:
        yield
    except ConfigError:
        raise
    except errors.GatedRepoError as error:
        page = f"{constants.ENDPOINT}/{place.repo}"
        raise ConfigError(f"{at} is gated: accept its terms at {page}, and {LOG_IN}") from error
    except errors.RepositoryNotFoundError as error:
        raise ConfigError(
            f"{at} is not on {constants.ENDPOINT}, or it is private: check the spelling; if it is "
            f"private, {LOG_IN}"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise ConfigError(
            f"{at} has no revision {place.revision}; give a branch, a tag or a commit of "
            f"{place.repo}"
        ) from error
    except errors.RemoteEntryNotFoundError as error:
        raise ConfigError(f"{at}{file} is listed, but the hub does not have it") from error
    except errors.HfHubHTTPError as error:
        answer = _answer(error.response.status_code, "write to" if to_write else "read")
        raise ConfigError(f"{at}{file} {answer}") from error
    except Exception as error:
        if not (isinstance(error, OSError) or _is_from_client(error)):
            raise
        raise ConfigError(f"{at}{file} {_why_unreachable(error)}") from error


def _answer(status: int, verb: str = "read") -> str:
    if status in (401, 403):
        return f"is refused (HTTP {status}): your token may not {verb} it; {LOG_IN} that may"
    return f"cannot be used: the hub answers with HTTP {status}; try again later"


def _why_unreachable(error: Exception) -> str:
    from huggingface_hub import constants, errors

    chain: list[BaseException] = [error]
    while following := chain[-1].__cause__:
        chain.append(following)
    if any(isinstance(each, errors.OfflineModeIsEnabled) for each in chain):
        return "is not in the cache, and HF_HUB_OFFLINE is set; run this once without it"
    for each in chain:
        if isinstance(each, errors.HfHubHTTPError):
            return _answer(each.response.status_code)
    reason = " ".join(str(chain[-1]).split())[:200] or type(chain[-1]).__name__
    return f"cannot be downloaded from {constants.ENDPOINT} ({reason}); check the network"


def listed(found: Collection[Any]) -> str:
    """The first names of a collection, for a message."""
    shown = sorted(found)
    more = f" and {len(shown) - MOST_LISTED} more" if len(shown) > MOST_LISTED else ""
    return ", ".join(shown[:MOST_LISTED]) + more
