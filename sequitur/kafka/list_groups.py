"""ListGroups (API 16): the groups of all kinds that a broker coordinates.

librdkafka's admin client lists consumer groups alone; share groups need records, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aiokafka.protocol.admin import ListGroupsRequest

from sequitur.errors import FatalError, RetriableError
from sequitur.kafka.error_codes import Action, Request, action_of, meaning_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


async def listed_groups(ask: Callable[[Any], Awaitable[Any]]) -> dict[str, str]:
    """Return the kind of each group that a broker coordinates: `consumer`, `share`, and others."""
    answer = await ask(ListGroupsRequest())
    match action_of(Request.GROUPS, answer.error_code):
        case Action.DONE:
            return dict(answer.groups)
        case Action.RETRY:
            raise RetriableError(f"groups: {meaning_of(answer.error_code).name}")
    raise FatalError(f"groups: {meaning_of(answer.error_code).name}")
