"""Upload a folder to the hub."""

from __future__ import annotations

from pathlib import Path

from huggingface_hub import HfApi, hf_hub_url
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalTokenNotFoundError

from qdqbert.common.errors import UserInputError
from qdqbert.common.json_files import read_json
from qdqbert.common.progress import Progress
from qdqbert.data.rows.lines import counted
from qdqbert.evidence.checksums import check_files
from qdqbert.evidence.reporting.push import PushReport
from qdqbert.runtime.artifact import QUANTIZATION, REPORT, REPORT_PAGE, open_artifact
from qdqbert.verbs.push.options import PushOptions

# Statuses of the hub if the user is not logged in, or may not write.
_REFUSED = (401, 403)


def run(options: PushOptions, progress: Progress) -> PushReport:
    """Upload a folder."""
    _check_name(options.repo)
    folder = Path(options.model)
    open_artifact(folder)
    _check_texts(folder, options)
    with progress.stage("Comparing checksums"):
        _check_files(folder)
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    names = [path.relative_to(folder).as_posix() for path in paths]
    files = {
        name: path.stat().st_size
        for name, path in zip(names, paths, strict=True)
        # Hidden files belong to other programs.
        if not f"/{name}".count("/.")
    }
    url = None
    if not options.dry_run:
        with progress.stage(f"Uploading to {options.repo}"):
            url = _upload(folder, list(files), options)
    return PushReport(
        model=str(options.model),
        repo=options.repo,
        files=files,
        size_bytes=sum(files.values()),
        url=url,
        notices=_notices(options),
    )


def _check_name(repo: str) -> None:
    try:
        hf_hub_url(repo, QUANTIZATION)
        is_complete = "/" in repo
    except HFValidationError:
        is_complete = False
    if not is_complete:
        raise UserInputError(
            f"`repo={repo!r}` is not a name on the hub. Pass OWNER/NAME, of letters, digits, '.', "
            "'_' and '-'.",
            argument="repo",
        )


def _check_files(folder: Path) -> None:
    """Refuse a folder that others could not verify."""
    damaged = [each for each in check_files(folder) or () if each.verdict != "intact"]
    if damaged:
        raise UserInputError(
            f"`model={str(folder)!r}` is not as `quantize` wrote it: {damaged[0].name} is "
            f"{damaged[0].verdict}. Quantize the model again.",
            argument="model",
        )


def _check_texts(folder: Path, options: PushOptions) -> None:
    """Refuse to publish texts that a report shows, unless the user asks for it."""
    if options.private or options.publish_texts or not (folder / REPORT).is_file():
        return
    targets = read_json(folder / REPORT).get("targets") or ()
    texts = sum(len(each.get("changed") or ()) for each in targets)
    if texts:
        raise UserInputError(
            f"`private=False` would publish {counted(texts, 'text')} that the model was compared "
            f"on, which {REPORT} and {REPORT_PAGE} of {str(folder)!r} show because the prediction "
            "changed. Pass `publish_texts=True` if everyone may read them, or leave "
            "`private=False` out.",
            argument="private",
        )


def _upload(folder: Path, files: list[str], options: PushOptions) -> str:
    """Upload files, and return the address of the commit."""
    api = HfApi(library_name="qdqbert")
    try:
        api.create_repo(options.repo, private=options.private, exist_ok=True)
        if options.private and not api.model_info(options.repo).private:
            raise UserInputError(
                f"`repo={options.repo!r}` exists on the hub, and everyone can read it. Pass "
                "`private=False` to upload to it, or another name.",
                argument="repo",
            )
        commit = api.upload_folder(
            repo_id=options.repo,
            folder_path=folder,
            allow_patterns=files,
            commit_message="Upload a model that qdqbert quantized",
        )
    except UserInputError:
        raise
    # Errors of connections differ with the HTTP library and have no common class.
    except Exception as error:
        raise UserInputError(
            f"`repo={options.repo!r}` cannot be written: {_reason(error)}", argument="repo"
        ) from error
    return str(commit.commit_url)


def _reason(error: Exception) -> str:
    status = error.response.status_code if isinstance(error, HfHubHTTPError) else None
    if isinstance(error, LocalTokenNotFoundError) or status in _REFUSED:
        return (
            "you are not logged in, or may not write there. Log in with `hf auth login`, or set "
            "HF_TOKEN to a token with write access."
        )
    if status is not None:
        return f"the hub answered with status {status}. Try again later."
    return f"the hub cannot be reached ({type(error).__name__}). Check the connection."


def _notices(options: PushOptions) -> list[str]:
    if options.private:
        return []
    return [
        f"Everyone can read the command line in {QUANTIZATION} and {REPORT}, with the names of "
        "your files, and the card README.md. Make the repository private if they should not."
    ]
