"""Ray's authentication token: where this process has one from, and whether a cluster takes it.

Ray itself tries for twenty seconds and prints warnings of its own before it says that a token is wrong.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import secrets
import tempfile
from dataclasses import dataclass
from pathlib import Path

import grpc
import ray

from fedactors.errors import BadInput
from fedactors.runtime.addresses import uses_tls

_SECONDS = 5.0
_QUESTION = "/ray.rpc.NodeInfoGcsService/GetClusterId"
"""A call that every GCS answers and that changes nothing."""
_HINT = "set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN_PATH to the cluster's token"


@dataclass(frozen=True)
class Token:
    """A token and where it was found."""

    text: str
    place: str


def own_token() -> Token | None:
    """Return the token that Ray would show in this process, if it has one and shows any."""
    if not _is_token_mode():
        return None
    if given := os.environ.get("RAY_AUTH_TOKEN", "").strip():
        return Token(given, "RAY_AUTH_TOKEN")
    path = token_path()
    try:
        text = path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None
    return Token(text, str(path)) if text else None


def token_path() -> Path:
    """Return where Ray looks for a token that is not in RAY_AUTH_TOKEN."""
    return Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token")


def make_own_token() -> None:
    """Make the token that Ray would make where it starts in this process and finds none: to be read by its user only.

    Ray itself makes one that all users of the machine can read.
    """
    if own_token() is not None or os.environ.get("RAY_AUTH_TOKEN_PATH") or not _is_token_mode():
        return
    path = token_path()
    with contextlib.suppress(OSError):  # without a folder to write to Ray says so itself
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent) as file:
            file.write(secrets.token_hex(32))
            file.flush()
            os.link(file.name, path)  # whole or not at all, and never in place of another's


def _is_token_mode() -> bool:
    mode = os.environ.get("RAY_AUTH_MODE")
    return asks_by_itself() if mode is None else mode.lower() == "token"


def asks_by_itself() -> bool:
    """Say whether the installed Ray asks for a token where RAY_AUTH_MODE is not set.

    One that starts inside a process then always does; ``ray start`` does where it finds a token.
    """
    with contextlib.suppress(ImportError):
        setup = importlib.import_module(f"{ray.__name__}._private.authentication.authentication_token_setup")
        return hasattr(setup, "enable_token_auth_by_default")
    return False


def check_token(address: str) -> None:
    """Check that the cluster at ``host:port`` lets this process in, and show it the token that it wants.

    Where RAY_AUTH_MODE is not set, Ray joins without a token, even if one lies where ``ray start`` found its own.

    Raises:
        BadInput: it asks for a token, and this process has none or another one.
    """
    if address == "auto" or uses_tls() or not _refuses(address, None):
        return
    token = own_token()
    if token is None:
        raise BadInput(f"address: the cluster at {address!r} asks for a token, and none is set: {_HINT}")
    if _refuses(address, token):
        raise BadInput(f"address: the cluster at {address!r} refuses the token of {token.place}: {_HINT}")
    if "RAY_AUTH_MODE" not in os.environ:
        os.environ["RAY_AUTH_MODE"] = "token"
        importlib.import_module(f"{ray.__name__}._raylet").Config.initialize("")  # which has read the environment


def _refuses(address: str, token: Token | None) -> bool:
    shown = () if token is None else (("authorization", f"Bearer {token.text}"),)
    with grpc.insecure_channel(address) as channel:
        try:
            channel.unary_unary(_QUESTION)(b"", timeout=_SECONDS, metadata=shown)
        except grpc.RpcError as error:
            return bool(error.code() == grpc.StatusCode.UNAUTHENTICATED)  # whatever else it is, Ray says it better
    return False
