"""Upload of an exported folder to the Hugging Face hub."""

from __future__ import annotations

from pathlib import Path

from huggingface_hub import HfApi
from huggingface_hub.errors import (
    HfHubHTTPError,
    HFValidationError,
    LocalTokenNotFoundError,
)
from huggingface_hub.utils import validate_repo_id

from rllib_llm.errors import ConfigError

# Base class of the HTTP client's errors, those of connections included. The client is
# httpx or httpx2, depending on the version of huggingface_hub.
_HTTP_ERROR: type[Exception] = HfHubHTTPError.__mro__[1]


def check_access(repository: str) -> None:
    """Check the name of a repository and the access token, before anything is loaded.

    Args:
        repository: ``"owner/name"``, or ``"name"`` for the owner of the token.

    Raises:
        ConfigError: If the name is invalid, or the hub refuses the token.
    """
    try:
        validate_repo_id(repository)
        HfApi().whoami()
    except HFValidationError as error:
        raise ConfigError(
            f"--push {repository!r} is not the name of a repository: {error} Give "
            "OWNER/NAME."
        ) from error
    except (LocalTokenNotFoundError, _HTTP_ERROR) as error:
        raise ConfigError(
            f"--push {repository}: the hub did not accept you: {_summary(error)}. Set "
            "HF_TOKEN to a token with write access, or run 'hf auth login'. Another "
            "hub is set by HF_ENDPOINT."
        ) from error


def push_folder(folder: Path, repository: str, *, private: bool) -> str:
    """Create the repository if it does not exist, and upload all files in one commit.

    Args:
        folder: An exported folder.
        repository: ``"owner/name"``.
        private: Whether a new repository is private.

    Returns:
        Address of the commit.

    Raises:
        ConfigError: If the hub refuses the upload; the folder is kept.
    """
    api = HfApi()
    try:
        url = api.create_repo(repository, private=private, exist_ok=True)
        commit = api.upload_folder(
            repo_id=url.repo_id,
            folder_path=folder,
            commit_message="Upload a policy trained with rllib_llm",
        )
    except (_HTTP_ERROR, OSError) as error:
        raise ConfigError(
            f"{folder} was written, but the upload to {repository} failed: "
            f"{_summary(error)}. Repeat it with 'hf upload {repository} {folder}'."
        ) from error
    return str(commit.commit_url)


def _summary(error: Exception) -> str:
    """Return the first line of an error."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
