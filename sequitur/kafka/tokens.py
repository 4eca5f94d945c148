"""Tokens for OAUTHBEARER: from the user's code, or from a file that another program renews."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from pathlib import Path

TokenProvider: TypeAlias = Callable[[], Awaitable[str]]
"""Gives a token that is valid now; asked for each login, so it may keep one for a while."""


def aiokafka_provider(token_provider: TokenProvider) -> Any:
    """Return a provider as aiokafka's clients want it."""
    from aiokafka.abc import AbstractTokenProvider  # noqa: PLC0415 - few need the client

    class Provider(AbstractTokenProvider):  # type: ignore[misc]  # it has no types
        async def token(self) -> str:
            return await token_provider()

    return Provider()


def read_token(path: Path) -> str:
    """Return the token in a file, which may end with a newline."""
    return path.read_text().strip()
