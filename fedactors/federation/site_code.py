"""Code that a site lets runs import beside the installed one, and who decides on it.

    run --code nets.py ──propose: digests, and the files where they are small──▶ take_code ──▶ proposals/code/DIGEST
                                 its person: site code RUN, site allow-code RUN; or a signer's key ──▶ code/DIGEST

Nothing of it is imported before its files lie in ``code/DIGEST``; a run that names other code is refused. It runs with
all rights of the site's process: no sandbox holds it.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedactors import user_code
from fedactors.config import code_named_in
from fedactors.errors import BadInput
from fedactors.federation.identity import Passphrase, read_key, read_public_key, sign, verify
from fedactors.federation.site_folder import CODE, SiteFolder, to_tell
from fedactors.runs.storage import write_atomic
from fedactors.validation import shown, writing

if TYPE_CHECKING:
    from fedactors.federation.approval import Proposal

SENT_BYTES = 32 * 1024
"""Of all files of a code that a proposal brings along; larger code each site's person adds."""
_MOST_PROPOSED = 20
"""Codes that wait for a person; the oldest give way."""
_MOST_LISTED = 5
"""Files that a line names."""


def check_named(proposal: Proposal, config: Any, me: str) -> None:
    """Check that settings name code of the proposal alone.

    Raises:
        BadInput: naming the setting.
    """
    named, digest = code_named_in(config), code_digest(proposal)
    for field, address in named.items():
        if digest is None or user_code.digest_in(address) != digest:
            raise BadInput(
                f"proposal: config.{field}: {shown(address)} is not allowed between sites: name code of files that "
                "the run brings, --code FILE"
            )
        if "(" in address:  # others would choose with what allowed code is called, before the run is approved
            raise BadInput(
                f"proposal: config.{field}: {shown(address.partition(':')[2])} is not allowed between sites: name a "
                "function that takes no arguments of the setting"
            )
    if proposal.code and not named:
        raise BadInput(f"{me}: proposal: code: no setting names it")


def check_digests(code: Mapping[str, str]) -> None:
    """Check the names and digests of a proposal's files: `take_code` makes paths of them.

    Raises:
        BadInput: naming the first that is none.
    """
    user_code.check_names(code, "proposal: code")
    if wrong := [name for name, sha256 in code.items() if not user_code.DIGEST.fullmatch(sha256)]:
        raise BadInput(f"proposal: code: {shown(wrong[0])} is not allowed: give the SHA-256 of each file")


def code_digest(proposal: Proposal) -> str | None:
    """Return the digest of a proposal's code; None: it brings none."""
    return user_code.digest_of(proposal.code) if proposal.code else None


def is_allowed(folder: SiteFolder, digest: str) -> bool:
    """Say whether runs may import a code here."""
    return bool(user_code.DIGEST.fullmatch(digest)) and (folder.path / CODE / digest).is_dir()


def allowed_code(folder: SiteFolder) -> list[str]:
    """Return the digests of all code that runs may import here."""
    return sorted(path.name for path in (folder.path / CODE).glob("*") if is_allowed(folder, path.name))


def why_not_allowed(folder: SiteFolder, proposal: Proposal) -> str:
    """Return what the site's person is to do before a proposal's code may be imported; empty: it may.

    Raises:
        BadInput: the policy allows no such code.
    """
    if (digest := code_digest(proposal)) is None:
        return ""
    policy = folder.policy
    if policy.code == "refuse":
        raise to_tell(f'{folder.name}: policy.code: no code of others is imported here ("refuse")')
    if policy.code_signers and signer_of(folder, proposal) is None:
        raise to_tell(
            f"{folder.name}: policy.code_signers: the code {digest[:12]} bears no signature of "
            f"{', '.join(policy.code_signers)}: fedactors site sign-code"
        )
    if is_allowed(folder, digest):
        return ""
    files = ", ".join(list(proposal.code)[:_MOST_LISTED])
    files += ", ..." if len(proposal.code) > _MOST_LISTED else ""
    if not (_proposed(folder) / digest).is_dir():
        return (
            f"its code {digest[:12]} ({files}) is not here: get the files from "
            f"{proposal.coordinator}, read them, then fedactors site allow-code FILE"
        )
    return (
        f"its code {digest[:12]} ({files}) is not allowed here: read it with fedactors site code "
        f"{proposal.run}, then fedactors site allow-code {proposal.run}"
    )


def take_code(folder: SiteFolder, proposal: Proposal, more: tuple[Any, ...]) -> bool:
    """Keep the files that a proposal brings where its person can read them, and allow what a signer's key allows.

    Returns:
        Whether a signature has allowed them now.

    Raises:
        BadInput: they are other files than the proposal says.
    """
    digest, sent = code_digest(proposal), more[0] if more else None
    if folder.policy.code == "refuse" or digest is None:
        return False
    if sent and not is_allowed(folder, digest):
        if not isinstance(sent, Mapping) or not all(type(one) is bytes for one in sent.values()):
            raise BadInput(f"{folder.name}: proposal: code: its files are no bytes")
        if sum(map(len, sent.values())) > SENT_BYTES or user_code.digests(dict(sent)) != dict(proposal.code):
            raise BadInput(f"{folder.name}: proposal: code: its files are others than its digests say")
        user_code.check_files(dict(sent), f"{folder.name}: proposal: code")
        shutil.rmtree(_proposed(folder) / digest, ignore_errors=True)  # these are whole, and now the newest
        waiting = [path for path in _proposed(folder).glob("*") if path.is_dir()]
        for path in sorted(waiting, key=_changed_at)[: max(0, len(waiting) - _MOST_PROPOSED + 1)]:
            shutil.rmtree(path, ignore_errors=True)
        user_code.write_folder(_proposed(folder), dict(sent))
    who = signer_of(folder, proposal) if folder.policy.code == "signed" else None
    if who is None or is_allowed(folder, digest) or not (_proposed(folder) / digest).is_dir():
        return False
    if any(line["what"] == "removed_code" and line["code"] == digest for line in folder.log()):
        return False  # a signature brings back nothing that this site's person took away
    allow(folder, user_code.read_folder(_proposed(folder) / digest), f"signed by {who}")
    return True


def _changed_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:  # a person has just allowed it
        return 0.0


def source_files(paths: Sequence[str]) -> dict[str, bytes]:
    """Return the source files of modules and packages that this site's person names.

    Raises:
        BadInput: there are none.
    """
    return user_code.read_files(paths, "PATH")


def proposed_code(folder: SiteFolder) -> list[str]:
    """Return the digests of code that waits for this site's person."""
    return sorted(path.name for path in _proposed(folder).glob("*") if user_code.DIGEST.fullmatch(path.name))


def files_to_send(folder: SiteFolder, proposal: Proposal) -> dict[str, bytes]:
    """Return the files that go with a proposal; none where it brings none, or they are large."""
    if (digest := code_digest(proposal)) is None:
        return {}
    files = user_code.read_folder(folder.path / CODE / digest)
    return files if sum(map(len, files.values())) <= SENT_BYTES else {}


def waiting_files(folder: SiteFolder, digest: str) -> dict[str, bytes] | None:
    """Return the files of a code, allowed or proposed; None: they are not here."""
    for parent in (folder.path / CODE, _proposed(folder)):
        if (parent / digest).is_dir():
            return user_code.read_folder(parent / digest)
    return None


def texts_of(files: user_code.Files) -> dict[str, str]:
    """Return the text of each file, as Python reads it."""
    return {name: user_code.text_of(content) for name, content in files.items()}


def allow(folder: SiteFolder, files: user_code.Files, why: str) -> str:
    """Let runs import files here, once each site's policy and person approve of the run; return their digest."""
    digest = user_code.digest_of(user_code.digests(files))
    if not is_allowed(folder, digest):
        user_code.write_folder(folder.path / CODE, files)
        folder.audit.add("allowed_code", code=digest, files=", ".join(files), why=why)
    shutil.rmtree(_proposed(folder) / digest, ignore_errors=True)
    return digest


def remove(folder: SiteFolder, digest: str, why: str) -> None:
    """Let runs import a code here no more; a process that has imported it keeps it until its end."""
    folder.audit.add("removed_code", code=digest, why=why)
    away = folder.path / CODE / f".{digest}.{secrets.token_hex(8)}.removed"
    (folder.path / CODE / digest).rename(away)  # at once: of some of its files nobody imports anything
    shutil.rmtree(away)


def _proposed(folder: SiteFolder) -> Path:
    return folder.path / "proposals" / CODE


# --- signatures ---


def sign_code(paths: Sequence[str], key: Path, passphrase: Passphrase) -> tuple[str, Path]:
    """Sign the source files at paths by the key of a person; return their digest, and the file beside the first.

    Raises:
        BadInput: there are no source files, or no key.
    """
    digest = user_code.digest_of(user_code.digests(source_files(paths)))
    file = user_code.signature_at(paths[0])
    signature = sign(read_key(key, passphrase), _signed(digest)).hex()
    with writing("PATH", file):
        write_atomic(file, f"{signature}\n".encode(), "signature")
    return digest, file


def signer_of(folder: SiteFolder, proposal: Proposal) -> str | None:
    """Return who of the policy's signers has signed a proposal's code; None: nobody."""
    try:
        signature = bytes.fromhex(proposal.code_signature)
    except ValueError:
        return None
    signed = _signed(str(code_digest(proposal)))
    for name, text in folder.policy.code_signers.items():
        if verify(read_public_key(text, f"{folder.name}: policy.code_signers.{name}"), signature, signed):
            return name
    return None


def _signed(digest: str) -> bytes:
    return f"fedactors code {digest}\n".encode()
