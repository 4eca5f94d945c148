"""What is decided by commit tokens."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sequitur.consumer import (
    CommitToken,
    CommitTokenError,
    OutputPartition,
    commits_group,
    read_token,
    renewed_tokens,
    rows_there,
)

_WHERE = OutputPartition("ordered", 2)
_OTHER = OutputPartition("ordered.late", 0)
_COUNTS = {"ordered": 4, "ordered.late": 1}


def _token(step: int, *, rows: int = 7, job: str = "mine", partitions: int = 4) -> CommitToken:
    return CommitToken(job=job, step=step, rows=rows, partitions=partitions)


def _there(found: CommitToken | None, *, step: int = 5) -> int | None:
    return rows_there(_WHERE, found, job="mine", step=step, partitions=4)


def _renewed(
    found: dict[OutputPartition, CommitToken | None],
    *,
    done: int = 4,
    newest: int = 4,
    is_established: bool = True,
    written: tuple[str, ...] | None = None,
) -> dict[OutputPartition, CommitToken]:
    return renewed_tokens(
        found,
        job="mine",
        done=done,
        newest=newest,
        is_established=is_established,
        partitions=_COUNTS,
        written=written,
    )


@given(
    step=st.integers(-1, 2**62),
    rows=st.integers(0, 2**62),
    job=st.text(st.characters(codec="utf-8"), max_size=40),
    partitions=st.integers(1, 10_000),
)
def test_token_survives_as_an_offset(step: int, rows: int, job: str, partitions: int) -> None:
    """What is committed is what is read, and it fits into an offset's metadata."""
    token = CommitToken(job=job, step=step, rows=rows, partitions=partitions)
    assert read_token(_WHERE, token.offset, token.metadata) == token
    assert len(token.metadata) <= 4096


def test_no_offset_is_no_token() -> None:
    """Kafka's "nothing committed" is no token."""
    assert read_token(_WHERE, -1001, "") is None


@pytest.mark.parametrize("metadata", [None, "", "{", "5", "[]", "{}", '{"sequitur":1}'])
def test_foreign_offset_is_refused(metadata: str | None) -> None:
    """An offset of another program is not taken for a token."""
    for offset in (0, 5):
        refused = (
            rf"partition 2 of 'ordered': offset {offset} .* token of ours: .*\? Set another app$"
        )
        with pytest.raises(CommitTokenError, match=refused):
            read_token(_WHERE, offset, metadata)


def test_newer_token_is_refused() -> None:
    """A token of a newer version is named as such."""
    with pytest.raises(CommitTokenError, match="format 2; this version reads 1"):
        read_token(_WHERE, 5, '{"sequitur":2,"job":"mine"}')


def test_rows_are_there_when_the_token_says_so() -> None:
    """The token of the step itself: its rows are there. Of an earlier one: they are not."""
    assert _there(_token(5, rows=12)) == 12
    assert _there(_token(5, rows=0)) == 0
    assert _there(_token(4)) is None
    assert _there(_token(-1)) is None


@pytest.mark.parametrize(("found", "message"), [
    (None, "has no commit token: it was lost"),
    (_token(4, job="theirs"), r"of another checkpoint \(theirs, ours is mine\): .* of its own$"),
    (_token(6), "holds step 6, and the checkpoint has got to step 5 only"),
    (_token(4, partitions=3), "'ordered' had 3 partitions when step 5 was begun, and has 4 now"),
])  # fmt: skip
def test_what_is_not_known_is_refused(found: CommitToken | None, message: str) -> None:
    """Nothing is written, and nothing is left out, on a guess."""
    with pytest.raises(CommitTokenError, match=message):
        _there(found)


def test_each_partition_gets_a_token_between_two_steps() -> None:
    """Those that have one keep what it says, those without get one of the last step."""
    renewed = _renewed({_WHERE: _token(2), _OTHER: None})
    assert renewed == {_WHERE: _token(2), _OTHER: _token(4, rows=0, partitions=1)}


def test_partitions_may_be_added_between_two_steps() -> None:
    """A topic that has grown gets tokens that know of it."""
    grown = _renewed({_WHERE: _token(2, partitions=3)})
    assert grown == {_WHERE: _token(4, rows=0)}


def test_unfinished_step_gets_no_new_tokens() -> None:
    """A task that outlived its driver may commit one at any time: none is written over."""
    assert _renewed({_WHERE: _token(5), _OTHER: _token(3, partitions=1)}, newest=5) == {}


@pytest.mark.parametrize("found", [None, _token(4, partitions=3)])
def test_lost_token_of_an_unfinished_step_is_refused(found: CommitToken | None) -> None:
    """Offsets expire after days: whether the rows are there is then not known."""
    with pytest.raises(CommitTokenError, match="run once with delivery"):
        _renewed({_WHERE: found}, newest=5)


def test_first_tokens_come_in_an_unfinished_step_too() -> None:
    """A job that was begun at least once has no tokens yet; those it has are left alone."""
    renewed = _renewed({_WHERE: _token(5), _OTHER: None}, newest=5, is_established=False)
    assert renewed == {_OTHER: _token(4, rows=0, partitions=1)}


@pytest.mark.parametrize("found", [None, _token(2, partitions=3), _token(3)])
def test_a_topic_that_an_unfinished_step_writes_nothing_to_may_be_new(
    found: CommitToken | None,
) -> None:
    """Or have grown: nothing of the step can be there. A token that fits is left alone."""
    renewed = _renewed({_WHERE: found, _OTHER: None}, newest=5, written=())
    fits = found is not None and found.partitions == _COUNTS[_WHERE.topic]
    expected = {_WHERE: _token(4, rows=0), _OTHER: _token(4, rows=0, partitions=1)}
    if fits:
        del expected[_WHERE]
    assert renewed == expected
    assert _renewed(
        {_OTHER: _token(5, partitions=1), _WHERE: found}, newest=5, written=("ordered.late",)
    ) == {where: token for where, token in expected.items() if where == _WHERE}
    with pytest.raises(CommitTokenError, match="did not write there when step 5 was begun"):
        _renewed({_WHERE: None, _OTHER: None}, newest=5, written=(_WHERE.topic,))


@pytest.mark.parametrize("is_established", [True, False])
@pytest.mark.parametrize("newest", [4, 5])
@pytest.mark.parametrize("found", [_token(3, job="theirs"), _token(6)])
def test_token_that_is_not_ours_is_refused_at_the_start(
    found: CommitToken, newest: int, is_established: bool
) -> None:
    """Another job's token, or one ahead of the checkpoint, is never written over."""
    with pytest.raises(CommitTokenError, match=r"another checkpoint|holds step 6"):
        _renewed({_WHERE: found}, newest=newest, is_established=is_established)


def test_the_group_of_the_tokens_is_named_after_the_job() -> None:
    """Whoever looks for a job's tokens knows where they are."""
    assert commits_group("orders") == "orders.commits"
