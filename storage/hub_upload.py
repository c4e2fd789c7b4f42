"""Uploads the files of a model to the Hugging Face hub, in one commit."""

from pathlib import Path

from experiment.schema import ConfigError
from storage import hub

# A new repository has this file from the start.
IGNORED = (".gitattributes", "README.md")


def require_new(key: str, text: str) -> hub.HubAddress:
    """The address of a model to upload; refuses one that is there, and a missing token."""
    from huggingface_hub import HfApi, errors, get_token

    place = hub.parse(key, text)
    if place != hub.HubAddress(place.repo):
        raise ConfigError(
            f"{key}={text} names a revision or a directory, and uploads go to the top of main; "
            f"write {key}={hub.HubAddress(place.repo)}"
        )
    if not get_token():
        raise ConfigError(f"{key}={text} needs a token with the right to write: {hub.LOG_IN}")
    with hub.refusals(key, place):
        try:
            found = HfApi().list_repo_files(place.repo)
        except errors.RepositoryNotFoundError:
            return place
    if names := [name for name in found if name not in IGNORED]:
        raise ConfigError(
            f"{key}={text} already has files ({hub.listed(names)}); choose a new name, or delete "
            "the model on the hub first"
        )
    return place


def upload(key: str, place: hub.HubAddress, directory: Path, message: str) -> str:
    """Uploads all files of a directory; a new repository is private. Returns the commit's URL.

    Files are sent before the commit, which makes them all visible at once.
    """
    from huggingface_hub import CommitOperationAdd, HfApi

    paths = sorted(path for path in directory.rglob("*") if path.is_file())
    with hub.refusals(key, place, to_write=True):
        HfApi().create_repo(place.repo, private=True, exist_ok=True)
        files = [CommitOperationAdd(path.relative_to(directory).as_posix(), path) for path in paths]
        try:
            return HfApi().create_commit(place.repo, files, commit_message=message).commit_url
        except RuntimeError as error:  # around what went wrong with one file
            raise error.__cause__ or error from error
