"""Rights on topics of a broker that has an authorizer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from confluent_kafka.admin import (  # type: ignore[attr-defined] # documented, but not in __all__
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from tests.support.waiting import PATIENCE_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["AUTHORIZER", "AclOperation", "ResourceType", "TopicRights"]

AUTHORIZER: Final[Mapping[str, str]] = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}
"""Server properties of a broker that asks for rights where a rule is, and else allows all."""

_TIMEOUT_S = PATIENCE_S


class TopicRights:
    """The rules of one topic, or of what else `kind` says.

    Args:
        bootstrap_servers: The broker.
        topic: The topic, or the name of what `kind` says.
        kind: What the rules are of.
    """

    def __init__(
        self, bootstrap_servers: str, topic: str, kind: ResourceType = ResourceType.TOPIC
    ) -> None:
        self._admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
        self._topic = topic
        self._kind = kind

    def deny(self, *operations: AclOperation) -> None:
        """Allow anybody all but these; return once the broker goes by it."""
        self.allow_all()
        allowed = [(AclOperation.ALL, AclPermissionType.ALLOW)]
        denied = [(operation, AclPermissionType.DENY) for operation in operations]
        rules = [self._rule(*each) for each in (*allowed, *denied)]
        for made in self._admin.create_acls(rules).values():
            made.result(_TIMEOUT_S)
        self._wait_for(len(rules))

    def allow_all(self) -> None:
        """Take all rules away; return once the broker goes by it."""
        every = self._every()
        self._admin.delete_acls([every])[every].result(_TIMEOUT_S)
        self._wait_for(0)

    def _rule(self, operation: AclOperation, permission: AclPermissionType) -> AclBinding:
        literal = ResourcePatternType.LITERAL
        user = "User:ANONYMOUS"
        return AclBinding(self._kind, self._topic, literal, user, "*", operation, permission)

    def _every(self) -> AclBindingFilter:
        anything: Any = None  # as its documentation says, and its types do not
        return AclBindingFilter(
            self._kind, self._topic, ResourcePatternType.LITERAL, anything, anything,
            AclOperation.ANY, AclPermissionType.ANY,
        )  # fmt: skip

    def _wait_for(self, count: int) -> None:
        """Wait until the broker goes by so many rules: it answers a change before it does."""
        wait_until(
            lambda: len(self._admin.describe_acls(self._every()).result(_TIMEOUT_S)) == count
        )
