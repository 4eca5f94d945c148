"""`docs/reference`: the public names by part, with what docstrings and settings say of them."""

from __future__ import annotations

import logging
import re
import textwrap
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple, get_args, get_origin

import griffe

from sequitur.base.flags import described, shown_default
from sequitur.base.settings import Section, is_secret
from tests.support.tree import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class _Part(NamedTuple):
    """A page: which names are on it, by the beginnings of the modules that define them."""

    title: str
    guide: str
    homes: tuple[str, ...]


_PARTS: Final = {
    "errors": _Part("Errors", "troubleshooting.md", ("sequitur.errors",)),
    "testing": _Part(
        "Names for tests",
        "testing.md",
        (
            "sequitur.consumer.topology.tester",
            "sequitur.consumer.topology.engine.plan.OutputRecord",
            "sequitur.pipelines.local.tester",
        ),
    ),
    "transactions": _Part(
        "Names for transactional topologies",
        "transactions.md",
        ("sequitur.consumer.topology.transactional", "sequitur.consumer.topology.state"),
    ),
    "windows": _Part("Names for windows", "windows.md", ("sequitur.consumer.topology.windows",)),
    "topologies": _Part(
        "Names for topologies",
        "topologies.md",
        ("sequitur.consumer.topology", "sequitur.base.copy_headers"),
    ),
    "subscriptions": _Part(
        "Names for subscriptions",
        "subscriptions.md",
        ("sequitur.consumer.subscription", "sequitur.base.retry"),
    ),
    "reorder": _Part(
        "Names for the reorder job",
        "reorder.md",
        ("sequitur.consumer.reorder", "sequitur.base.time_format"),
    ),
    "local": _Part("Names for jobs without Spark", "reorder.md", ("sequitur.pipelines.local",)),
    "spark": _Part("Names for Spark", "spark-sink.md", ("sequitur.pipelines",)),
    "producer": _Part(
        "Names for the producer", "producer.md", ("sequitur.producer", "sequitur.kafka")
    ),
}
"""A name is on the first page that has a beginning of it."""

FACES: Final = (
    *("sequitur", "sequitur.errors", "sequitur.spark", "sequitur.local", "sequitur.testing"),
    *("sequitur.subscription", "sequitur.windows"),
    *("sequitur.producer", "sequitur.consumer.reorder", "sequitur.consumer.topology"),
    "sequitur.consumer.topology.state",
)
"""A name is shown in the first of these packages that has it."""

_AGGREGATES: Final = (
    *("Count", "Sum", "Mean", "Min", "Max", "Quantiles", "Collect", "Reduce", "Top"),
)
NOT_FOR_USERS: Final = frozenset(
    {
        *("Key.__init__", "Key.before", "Key.check_call", "Key.end", "Key.entries", "Key.entry"),
        *("Key.number_list", "Key.resize", "Key.runner", "Key.shown"),
        *("KeyList.__init__", "KeyMap.__init__", "Topology.key_stores", "Topology.keyed_bolts"),
        *("BaseBolt.declared", "ComponentDeclarer.__init__", "ComponentDeclarer.grouping"),
        *("BasicOutputCollector.__init__", "BatchOutputCollector.__init__"),
        *("OutputCollector.__init__", "OutputCollector.hand_over"),
        *("Backoff.delay_ms", "Position.within", "Section.by_names_of_today"),
        *("Delivery.keeper", "Delivery.on_unheard", "Delivery.timestamp_ms"),
        *("IdempotentProducer.recovered_topics", "IdempotentProducer.wait_for_quota"),
        "IdempotentProducer.wait_for_topic",
        *("KafkaSettings.uses_sasl", "KafkaSettings.uses_tls"),
        *("MapState.__init__", "MapState.changes", "OrderedStep.__init__"),
        *("ProcessSettings.dead_letters", "ProcessSettings.retry", "ProcessSettings.rules"),
        "ProcessSettings.why_not_transactional",
        *("ProducerSettings.journaling", "ProducerSettings.waits_for_topics"),
        *("ReorderSettings.app_name", "ReorderSettings.bounds", "ReorderSettings.delay_policy"),
        *("ReorderSettings.duplicate_id", "ReorderSettings.longest_delay"),
        *("SQLStore.create", "SQLStore.give_up", "SQLStore.is_of_one_host", "SQLStore.is_sqlite"),
        *("SQLStore.session", "SQLStore.title", "SpoutCollector.__init__", "SpoutCollector.finish"),
        *("StateStore.create", "StateStore.give_up", "StateStore.is_of_one_host"),
        *("StateStore.session", "StateStore.title"),
        *("Ticket.close", "Ticket.complete", "Ticket.open", "Ticket.watch", "Totals.plus"),
        *("Topology.__init__", "Topology.bolts", "Topology.commit_phase", "Topology.components"),
        *("TimeFormat.__init__", "ProducerStatistics.__init__", "TransactionalTopology.__init__"),
        *("Topology.is_concurrent", "Topology.is_transactional", "Topology.outputs"),
        *("Topology.readers", "Topology.spout", "Topology.tick_intervals_ms", "Topology.topics"),
        "Topology.values_of",
        *("TransactionalTopology.commit_phase", "TransactionalTopology.commit_signature"),
        *("TransactionalTopology.committers", "TransactionalTopology.is_of_ordered_stream"),
        *("TransactionalTopology.is_transactional", "TransactionalTopology.parallelism"),
        *("TransactionalTopology.source", "TransactionalTopology.states"),
        *("TransactionalTopology.values_of", "TransactionalTopologyBuilder.set_spout"),
        "Tuple.declared",
        *(
            f"{kind}.{name}"
            for kind in (
                *("Count", "Sum", "Mean", "Min", "Max"),
                *("Quantiles", "Collect", "Reduce", "Top"),
            )
            for name in ("begin", "add", "merge")
        ),
        *("Sum.result", "Mean.result", "Quantiles.result"),
    }
)
"""What the engine or the daemon makes, calls or reads, though it has no underscore."""
_HEAD: Final = """\
# {title}

Generated by `make reference` from docstrings and settings: change those. How to use these names is
in [{guide}](../{guide}).
"""
_IN_FILES: Final = """\
[settings.md](../settings.md) has these settings as flags, variables and lines of a file. A program
may give the same text as a file, such as `"5 ms"` or `"64 MiB"`.
"""
_ROOT: Final = "SequiturError"
_TITLES: Final = {"parameters": "Arguments", "raises": "Raises"}
_SAMPLE: Final = re.compile(
    r"(?:^|(?P<blank> )|(?P<end>(?<=\w)))::\n\n(?P<sample>(?: {4}.*\n|\n)+)", re.MULTILINE
)


def reference_pages() -> dict[str, str]:
    """Return the text of each page of `docs/reference`, by the name of its file."""
    found: dict[str, dict[str, dict[str, griffe.Object]]] = {part: {} for part in _PARTS}
    shown: set[str] = set()
    for face in FACES:
        for name, one in _public(face).items():
            if one.path not in shown:
                shown.add(one.path)
                found[_part_of(one.path)].setdefault(face, {})[name] = one
    return {
        f"{part}.md": "\n".join(
            [
                _HEAD.format(title=_PARTS[part].title, guide=_PARTS[part].guide),
                *(_errors(faces) if part == "errors" else _names(faces)),
            ]
        )
        for part, faces in sorted(found.items())
    }


def _part_of(path: str) -> str:
    for part, (_, _, homes) in _PARTS.items():
        if any(path == home or path.startswith(f"{home}.") for home in homes):
            return part
    raise ValueError(f"{path} is on no page: give it one in tests/house/public_names.py")


@cache
def _modules() -> Any:
    logging.getLogger("griffe").setLevel(logging.ERROR)  # it takes notes in docstrings for sections
    loader = griffe.GriffeLoader(search_paths=[ROOT], docstring_parser="google")
    loader.load("sequitur")
    loader.resolve_aliases(implicit=False, external=False)
    return loader.modules_collection


def _public(face: str) -> dict[str, griffe.Object]:
    module = _modules()[face]
    return {str(name): _itself(module[name]) for name in sorted(module.exports or ())}


def _itself(one: griffe.Object | griffe.Alias) -> griffe.Object:
    return one.final_target if isinstance(one, griffe.Alias) else one


def _names(faces: dict[str, dict[str, griffe.Object]]) -> Iterator[str]:
    for face, names in faces.items():
        links = ", ".join(f"[`{name}`](#{_anchor(name, one)})" for name, one in names.items())
        yield f"- `{face}`: {links}"
    yield ""
    for face, names in faces.items():
        yield f"## `{face}`\n"
        for name, one in names.items():
            yield f"### `{name}`{' function' if isinstance(one, griffe.Function) else ''}\n"
            yield from _shown(name, one)


def _anchor(name: str, one: griffe.Object) -> str:
    """Return the link to a name: `bolt` and `Bolt` differ."""
    return name.lower() + ("-function" if isinstance(one, griffe.Function) else "")


def _shown(name: str, one: griffe.Object) -> Iterator[str]:
    if isinstance(one, griffe.Function):
        yield f"```python\n{one.signature(name=name)}\n```\n"
        yield from _docstring(one)
    elif isinstance(one, griffe.Class):
        made = one.all_members.get("__init__")
        called = made and _itself(made)
        if isinstance(called, griffe.Function) and _is_written(one, called):
            yield f"```python\n{called.signature(name=name, return_type=False)}\n```\n"
        yield from _bases(one)
        yield from _docstring(one)
        yield from _table(("setting", "type", "default", "meaning"), _settings(one))
        yield from ([_IN_FILES] if _is_section(one) else [])
        yield from _fields(one)
        yield from _table(("value", "meaning"), _choices(one))
        yield from _table(("member", "meaning"), _members(one))
    else:
        yield from _docstring(one)
        yield from _value(one)


def _is_written(one: griffe.Class, called: griffe.Function) -> bool:
    """Whether users call a class and its fields do not say how."""
    explained = {section.kind.value for section in _sections(one)}
    is_ours = _is_hidden(called) or f"{one.name}.__init__" in NOT_FOR_USERS
    return not is_ours and ("parameters" in explained or "attributes" not in explained)


def _value(one: griffe.Object) -> Iterator[str]:
    value = str(getattr(one, "value", None))
    if value != "None":
        shown = re.sub(r"^'([^'\"]*)'$", r'"\1"', value)
        yield f"```python\n{one.name} = {shown}\n```\n"


def _is_hidden(member: griffe.Object | griffe.Alias) -> bool:
    """Whether the class that defines a member has it for the engine alone."""
    return ".".join(_itself(member).path.split(".")[-2:]) in NOT_FOR_USERS


def _settings(one: griffe.Class) -> Iterator[tuple[str, ...]]:
    """Yield the settings of a section: name, type, default and meaning."""
    found = getattr(import_module(one.module.path), one.name, None) if _is_section(one) else None
    if found is None:
        return
    for name, info in found.model_fields.items():
        secret = (
            ". Never printed" if is_secret(info) and "Never printed" not in info.description else ""
        )
        default = shown_default(info)
        if default in {"", "yes", "no"}:
            default = repr(info.default)
        quoted = default if default == "required" else f"`{default}`"
        yield f"`{name}`", f"`{_type(info.annotation)}`", quoted, described(name, info) + secret


def _is_section(one: griffe.Class) -> bool:
    return any(str(base).rpartition(".")[2] == Section.__name__ for base in one.bases)


def _type(found: Any) -> str:
    """Return what a user annotates a setting with."""
    kind, inner = get_origin(found), get_args(found)
    if kind is Annotated:
        return _type(inner[0])
    if kind is Literal:
        return f"Literal[{', '.join(map(repr, inner))}]"
    if found is type(None) or found is Ellipsis:
        return "None" if found is type(None) else "..."
    if kind is not None and kind.__module__ == "builtins":
        return f"{kind.__name__}[{', '.join(map(_type, inner))}]"
    if inner:
        return " | ".join(map(_type, inner))
    return str(found.__name__)


def _fields(one: griffe.Class) -> Iterator[str]:
    """Yield the table of the attributes that a docstring explains."""
    rows = []
    for section in _sections(one):
        for each in section.value if section.kind.value == "attributes" else ():
            member = one.all_members.get(each.name)
            if member is None or not _is_hidden(member):
                kind = f"`{each.annotation}`" if each.annotation else ""
                rows.append((f"`{each.name}`", kind, _default(member), _line(each.description)))
    has_defaults = any(row[2] for row in rows)
    if has_defaults:
        yield from _table(("field", "type", "default", "meaning"), rows)
    else:
        yield from _table(("attribute", "type", "meaning"), [(*row[:2], row[3]) for row in rows])


def _default(member: griffe.Object | griffe.Alias | None) -> str:
    value = getattr(member, "value", None)
    if value is None or "class-attribute" not in getattr(member, "labels", ()):
        return ""
    made = re.search(r"default_factory=(\w+)", str(value))
    shown = f"{made[1]}()" if made else str(value)
    return "" if shown.startswith("field(") else f"`{shown}`"


def _bases(one: griffe.Class) -> Iterator[str]:
    """Say of which public class it is a kind, whose arguments it may have."""
    bases = [base for base in one.resolved_bases if base.path in _all_public()]
    if bases:
        yield f"A kind of {', '.join(f'`{base.name}`' for base in bases)}.\n"


@cache
def _all_public() -> frozenset[str]:
    return frozenset(one.path for face in FACES for one in _public(face).values())


def _is_enum(one: griffe.Class) -> bool:
    return any(str(base).rpartition(".")[2].endswith("Enum") for base in one.bases)


def _choices(one: griffe.Class) -> Iterator[tuple[str, str]]:
    for name, found in one.members.items() if _is_enum(one) else ():
        member = _itself(found)
        if isinstance(member, griffe.Attribute) and name.isupper():
            yield f"`{name}` ({str(member.value)[1:-1]})", _summary(member)


def _members(one: griffe.Class) -> Iterator[tuple[str, str]]:
    explained = {
        each.name
        for section in _sections(one)
        if section.kind.value == "attributes"
        for each in section.value
    }
    for name, found in one.all_members.items():
        member = _itself(found)
        is_known = name in explained or (_is_enum(one) and name.isupper())
        is_shown = not name.startswith("_") and not is_known and not _is_hidden(member)
        if is_shown and member.docstring is not None:
            yield f"`{_called(member)}`", _summary(member)


def _called(member: griffe.Object) -> str:
    if isinstance(member, griffe.Function):
        return ("async " if "async" in member.labels else "") + member.signature()
    kind = getattr(member, "annotation", None)
    return f"{member.name}: {kind}" if kind else member.name


def _errors(faces: dict[str, dict[str, griffe.Object]]) -> Iterator[str]:
    """Yield the errors, each below the base that a program catches for all of a part."""
    errors = {name: one for names in faces.values() for name, one in names.items()}
    bases = {name: _own_bases(one, errors) for name, one in errors.items()}
    by_top: dict[str, list[str]] = {}
    parents = {base for found in bases.values() for base in found}
    for name in errors:
        top = name
        while bases[top] and bases[top][0] != _ROOT:
            top = bases[top][0]
        alone = not bases[top] or top not in parents
        by_top.setdefault(_ROOT if alone else top, []).append(name)
    tops = [_ROOT, *sorted({*by_top} - {_ROOT})]
    yield "- `sequitur.errors`: " + ", ".join(f"[`{top}`](#{top.lower()})" for top in tops)
    yield ""
    for top in tops:
        yield f"## `{top}`\n"
        yield from _table(
            ("error", "is a", "meaning"),
            (
                (f"`{name}`", _kinds(errors[name]), _summary(errors[name]))
                for name in [top, *sorted({*by_top[top]} - {top})]
            ),
        )


def _own_bases(one: griffe.Object, errors: Iterable[str]) -> list[str]:
    bases = map(str, one.bases) if isinstance(one, griffe.Class) else ()
    return [base for base in bases if base in errors]


def _kinds(one: griffe.Object) -> str:
    return ", ".join(f"`{base}`" for base in one.bases) if isinstance(one, griffe.Class) else ""


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    lines = [f"| {' | '.join(map(_cell, row))} |" for row in rows]
    if lines:
        yield from (f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *lines, "")


def _sections(one: griffe.Object) -> list[Any]:
    return one.docstring.parsed if one.docstring is not None else []


def _docstring(one: griffe.Object) -> Iterator[str]:
    is_ours = f"{one.name}.__init__" in NOT_FOR_USERS
    for section in _sections(one):
        if section.kind is griffe.DocstringSectionKind.text:
            yield _SAMPLE.sub(_fenced, f"{section.value}\n").rstrip("\n") + "\n"
        elif not is_ours and (title := _TITLES.get(section.kind.value)):
            yield f"{title}:\n"
            for each in section.value:
                name = getattr(each, "name", None) or each.annotation
                yield f"- `{name}`: {_line(each.description)}"
            yield ""


def _fenced(found: re.Match[str]) -> str:
    """Return a sample of a docstring as a block of Python, after what says that it follows."""
    end = ":\n\n" if found["end"] is not None else "\n\n" if found["blank"] else ""
    return f"{end}```python\n{_sample(found)}```\n\n"


def _sample(found: re.Match[str]) -> str:
    return textwrap.dedent(found["sample"]).strip("\n") + "\n"


def samples() -> dict[str, list[str]]:
    """Return the samples in the docstrings of public names, by name."""
    shown = {name: one for face in FACES for name, one in _public(face).items()}
    texts = {
        name: "".join(f"{each.value}\n" for each in _sections(one) if isinstance(each.value, str))
        for name, one in shown.items()
    }
    found = {name: [*map(_sample, _SAMPLE.finditer(text))] for name, text in texts.items()}
    return {name: several for name, several in found.items() if several}


def _summary(one: griffe.Object) -> str:
    """Return the first paragraph of a docstring, and the errors and attributes that it names."""
    text = _line(one.docstring.value.partition("\n\n")[0]) if one.docstring is not None else ""
    named: dict[str, list[str]] = {"raises": [], "attributes": []}
    for section in _sections(one):
        for each in section.value if section.kind.value in named else ():
            named[section.kind.value].append(f"`{getattr(each, 'name', None) or each.annotation}`")
    for kind, verb in (("raises", "Raises"), ("attributes", "Has")):
        text += f" {verb} {', '.join(named[kind])}." if named[kind] else ""
    return text


def _line(text: str) -> str:
    return " ".join(text.split())


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
