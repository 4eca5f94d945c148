"""The journal's bytes: what is written is read, and nothing else is."""

from __future__ import annotations

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sequitur.errors import JournalVersionError
from sequitur.kafka.identity import Identity
from sequitur.kafka.record_batch import Stamp
from sequitur.producer.journal.frames import (
    FORMAT_VERSION,
    HEADER_LENGTH,
    PREAMBLE_LENGTH,
    Ack,
    Acks,
    BatchFrame,
    Commit,
    Drop,
    Frame,
    Head,
    Number,
    Numbered,
    PartitionState,
    PlacedFrame,
    Renewal,
    Restamp,
    SourcePosition,
    Waiting,
    decode_frame,
    decode_preamble,
    encode_frame,
    encode_preamble,
    encode_round,
    find_frame,
    segment_seed,
    stated_frame,
    without_bytes,
)
from sequitur.producer.journal.scan import Damage, Scan, TornTail, scan_segment
from tests.property.journal_model import record_batch

_SEGMENT = 3
_SEED = segment_seed(_SEGMENT)


def batch(
    base: int = 0, *, body: bytes = b"body", partition: int = 0, event: int = 0
) -> BatchFrame:
    data = record_batch(Stamp(7, 2, base), body)
    position = SourcePosition("file", b"line 12")
    return BatchFrame(
        "cpu", partition, 7, 2, base, 10, event, event + 9, position, 1_700_000_000_000, True, data
    )


HEAD = Head(
    "cpu-readings",
    4711,
    identity=Identity(7, 2),
    next_event_sequence=12,
    partitions=(PartitionState("cpu", 1, 7, 2, 2**31 - 1, 11),),
    positions=(SourcePosition("stdin", b"\x00\xff"),),
)
FRAMES: list[Frame] = [
    HEAD,
    Renewal(Identity(9, 0), (Restamp("cpu", 0, 7, 2, 10, 0, 5),)),
    batch(),
    Acks((Ack("cpu", 0, 7, 2, 0, 4096), Ack("cpu", 0, 7, 2, 10, -1, "MESSAGE_TOO_LARGE"))),
    Waiting("größe", 3, 2**40, 2**40 + 9, 10, 5, 9, True, True, b"\xabSQF"),
    Numbered((Number("cpu", 0, 12, 21, 10, 7, 2, 10, 1_700_000_000_000),)),
    Drop((("cpu", 0, 12), ("cpu", 1, 5)), "delivery timeout"),
    Commit(whole=False),
    SourcePosition("file", b"line 13"),
]


def segment(*rounds: list[Frame], synced: int = 0) -> bytes:
    """A whole segment; each round says that `synced` bytes were on disk."""
    data = encode_preamble(_SEGMENT)
    for frames in rounds:
        data += b"".join(encode_round(frames, seed=_SEED, offset=len(data), synced=synced).buffers)
    return data


def synced_segment(*rounds: list[Frame]) -> tuple[bytes, list[int]]:
    """A segment whose rounds were each synced before the next, and where each ends."""
    data = encode_preamble(_SEGMENT)
    ends = [len(data)]
    for frames in rounds:
        data += b"".join(
            encode_round(frames, seed=_SEED, offset=len(data), synced=len(data)).buffers
        )
        ends.append(len(data))
    return data, ends


def frames_of(scan: Scan) -> list[Frame]:
    return [placed.frame for placed in scan.frames]


@pytest.mark.parametrize("frame", FRAMES, ids=lambda frame: type(frame).__name__)
def test_every_frame_type_is_read_as_written(frame: Frame) -> None:
    """Nothing is lost or changed between encoding and decoding."""
    encoded = b"".join(encode_round([frame], seed=_SEED, offset=24, synced=9).buffers)
    expected = PlacedFrame(3, 24, len(encoded), last_in_round=True, synced=9, frame=frame)
    assert expected == decode_frame(b"xyz" + encoded, 3, _SEED)


def test_a_batch_is_handed_on_without_a_copy() -> None:
    """The batch's bytes are a buffer of their own, the very object that was given."""
    sent = batch(body=b"x" * 200_000)
    buffers = encode_round([sent, sent], seed=_SEED, offset=24, synced=0).buffers
    assert sum(buffer is sent.data for buffer in buffers) == 2


def test_only_the_last_frame_of_a_round_ends_it() -> None:
    scan = scan_segment(segment(FRAMES, FRAMES[1:3]), _SEGMENT, newest=True)
    ends = [placed.last_in_round for placed in scan.frames]
    assert [*[False] * (len(FRAMES) - 1), True, False, True] == ends
    assert [without_bytes(frame) for frame in (*FRAMES, *FRAMES[1:3])] == frames_of(scan)


def test_a_frame_of_another_segment_is_none_of_this_one() -> None:
    """A copied or renamed segment file is seen to be in the wrong place."""
    encoded = b"".join(encode_round(FRAMES, seed=_SEED, offset=24, synced=0).buffers)
    assert decode_frame(encoded, 0, segment_seed(_SEGMENT + 1)) is None


@given(st.binary(max_size=200))
def test_any_bytes_are_no_frame(data: bytes) -> None:
    """Reading garbage finds nothing and never fails."""
    assert decode_frame(data, 0, _SEED) is None
    assert find_frame(data, 0, _SEED, 0) is None
    assert decode_preamble(data) is None


def test_sequences_wrap_after_the_largest() -> None:
    assert batch(2**31 - 10).next_sequence == 0
    assert batch(2**31 - 5).next_sequence == 5


def test_a_newer_format_is_refused_by_name() -> None:
    data = encode_preamble(_SEGMENT, FORMAT_VERSION + 1) + b"whatever"
    with pytest.raises(JournalVersionError, match=r"0003\.journal has journal format version 4"):
        scan_segment(data, _SEGMENT, newest=True)


def test_each_flipped_byte_of_a_synced_journal_is_damage_or_the_torn_last_round() -> None:
    """No flip crashes the reader, changes a frame or hides a good one behind the flipped one."""
    rounds: list[list[Frame]] = [[HEAD], FRAMES[1:3], [batch(20), FRAMES[4]], [FRAMES[3]]]
    data, ends = synced_segment(*rounds)
    whole = scan_segment(data, _SEGMENT, newest=True)
    for at in range(len(data)):
        for flip in (0x01, 0x80, 0xFF):
            broken = data[:at] + bytes([data[at] ^ flip]) + data[at + 1 :]
            scan = scan_segment(broken, _SEGMENT, newest=True)
            if at >= ends[-2]:
                assert scan.torn == TornTail(_SEGMENT, ends[-2], len(data) - ends[-2], 0)
                assert scan.damages == ()
                assert list(whole.frames[:-1]) == list(scan.frames)
                continue
            assert scan.torn is None
            assert len(scan.damages) == 1
            if at < PREAMBLE_LENGTH:
                assert scan.damages[0].offset == 0
                assert scan.damages[0].lost == f"the preamble ({PREAMBLE_LENGTH} bytes)"
                assert whole.frames == scan.frames
            else:
                hit = next(placed for placed in whole.frames if placed.at <= at < placed.end)
                good = [placed for placed in whole.frames if placed != hit]
                assert (hit.at, hit.length) == (scan.damages[0].offset, scan.damages[0].length)
                assert scan.damages[0].lost.startswith(f"{hit.length} bytes unreadable (")
                assert good == list(scan.frames)
                assert scan.damages[0].resumes_at == hit.end


@pytest.mark.parametrize("newest", [True, False])
def test_each_cut_of_the_newest_segment_is_torn_and_of_an_older_one_damage(newest: bool) -> None:
    """A file of any length gives its whole rounds; only the newest may end in the middle of one."""
    data, ends = synced_segment([HEAD], FRAMES[1:3], [batch(20), FRAMES[4]], [FRAMES[3]])
    for length in range(len(data)):
        scan = scan_segment(data[:length], _SEGMENT, newest=newest)
        if length < ends[1]:  # a segment has its name only when its head is on disk
            assert scan.torn is None
            assert scan.damages
        elif length in ends:
            assert (scan.torn, scan.damages) == (None, ())
            assert scan.frames[-1].end == length
        elif newest:
            kept = max(end for end in ends if end <= length)
            assert scan.damages == ()
            assert scan.torn is not None
            assert (kept, length - kept) == (scan.torn.offset, scan.torn.length)
            assert scan.frames[-1].end == kept
        else:
            assert scan.torn is None
            assert scan.damages


def test_a_flip_in_a_round_never_known_to_be_synced_is_damage_too() -> None:
    """Without a hole of zeros there was no power cut: good frames behind it are not dropped."""
    data = segment([HEAD], [batch(0)], [batch(10)], [batch(20)])
    first = scan_segment(data, _SEGMENT, newest=True).frames[1]
    for at in range(first.at, first.end):
        broken = data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :]
        scan = scan_segment(broken, _SEGMENT, newest=True)
        assert scan.torn is None
        assert [damage.frames_after for damage in scan.damages] == [2]


def test_a_flip_in_whole_sectors_never_known_to_be_synced_is_damage_too() -> None:
    """Sectors that were written are no hole, also where all their bytes are alike."""
    data = segment([HEAD], [batch(0, body=b"X" * 2000)], [batch(10)])
    broken = data[:1024] + b"x" + data[1025:]
    scan = scan_segment(broken, _SEGMENT, newest=True)
    assert scan.torn is None
    assert [damage.frames_after for damage in scan.damages] == [1]


def test_a_hole_up_to_the_next_frame_is_a_torn_tail() -> None:
    """The last sector of a bad frame counts, too, where the next one begins with its own."""
    ends = [len(segment([HEAD], [batch(0, body=b"x" * size)])) for size in (2000, 2512)]
    body = b"x" * (2000 + -ends[0] % 512)
    assert ends[1] - ends[0] == 512  # a byte more of the body is one more of the segment
    data = segment([HEAD], [batch(0, body=body)], [batch(10)])
    start, end = (placed.at for placed in scan_segment(data, _SEGMENT, newest=True).frames[1:])
    assert end % 512 == 0
    scan = scan_segment(data[: end - 512] + bytes(512) + data[end:], _SEGMENT, newest=True)
    assert scan.torn == TornTail(_SEGMENT, start, len(data) - start, 1)


@pytest.mark.parametrize("synced", [0, len(segment([HEAD]))])
def test_a_hole_in_rounds_never_synced_is_a_torn_tail(synced: int) -> None:
    """A page that was never written reads as zeros; what follows it was never synced either."""
    data = segment([HEAD], [batch(0, body=b"x" * 2000)], [batch(10)], synced=synced)
    broken = data[:1024] + bytes(512) + data[1536:]
    scan = scan_segment(broken, _SEGMENT, newest=True)
    start = scan_segment(data, _SEGMENT, newest=True).frames[1].at
    assert scan.torn == TornTail(_SEGMENT, start, len(data) - start, 1)
    assert frames_of(scan) == [HEAD]


def test_a_hole_in_a_synced_round_is_damage() -> None:
    """A later frame knows that the zeros had been bytes on disk."""
    data, _ = synced_segment([HEAD], [batch(0, body=b"x" * 2000)], [batch(10)])
    scan = scan_segment(data[:1024] + bytes(512) + data[1536:], _SEGMENT, newest=True)
    assert scan.torn is None
    assert [damage.frames_after for damage in scan.damages] == [1]


@pytest.mark.parametrize("newest", [True, False])
def test_bytes_taken_out_or_put_in_are_damage(newest: bool) -> None:
    """Frames that moved are found and told of, though none of them is where it was written."""
    data, ends = synced_segment([HEAD], [batch(0)], [batch(10)], [batch(20)])
    cases = {
        "7 bytes missing": data[: ends[1] + 40] + data[ends[1] + 47 :],
        f"{ends[2] - ends[1]} bytes missing": data[: ends[1]] + data[ends[2] :],
        "3 bytes inserted": data[: ends[1]] + b"abc" + data[ends[1] :],
        "1 bytes inserted": data[: ends[1]] + b"a" + data[ends[1] :],
    }
    for lost, broken in cases.items():
        scan = scan_segment(broken, _SEGMENT, newest=newest)
        assert scan.torn is None
        assert len(scan.damages) == 1
        assert lost in scan.damages[0].lost
        assert frames_of(scan)[-1] == without_bytes(batch(20))


def test_a_frame_inside_a_payload_is_no_frame() -> None:
    """A torn batch that carries older journal bytes is torn, not damaged."""
    older = segment([HEAD], [batch(0)])
    data = segment([HEAD], [batch(0)], [batch(10, body=older[PREAMBLE_LENGTH:] * 2)])
    scan = scan_segment(data[:-5], _SEGMENT, newest=True)
    assert scan.damages == ()
    assert scan.torn == TornTail(_SEGMENT, len(older), len(data) - 5 - len(older), 0)


def test_a_frame_inside_an_earlier_payload_does_not_follow_a_damage() -> None:
    """Though it says that it was written later: reading goes on behind the damage."""
    later = encode_round([batch(90)], seed=_SEED, offset=1 << 20, synced=0)
    body = b"".join(later.buffers)
    data, ends = synced_segment([HEAD], [batch(0, body=body)], [batch(10)], [batch(20)])
    broken = data[: ends[3] - 1] + bytes([data[ends[3] - 1] ^ 1]) + data[ends[3] :]
    scan = scan_segment(broken, _SEGMENT, newest=True)
    assert [(damage.offset, damage.resumes_at) for damage in scan.damages] == [(ends[2], ends[3])]
    assert [placed.at for placed in scan.frames] == [ends[0], ends[1], ends[3]]


@pytest.mark.parametrize("newest", [True, False])
def test_a_whole_round_that_is_gone_is_a_damage(newest: bool) -> None:
    """What follows was written after it had been synced, so it is no torn tail."""
    data, ends = synced_segment([HEAD], [batch(0)], [batch(10)])
    scan = scan_segment(data[: ends[1]] + data[ends[2] :], _SEGMENT, newest=newest)
    assert [damage.offset for damage in scan.damages] == [ends[1]]
    assert scan.torn is None


def test_damages_behind_inserted_bytes_are_told_where_they_are() -> None:
    """Only the first has moved what follows it, and none hides a good frame behind it."""
    data, ends = synced_segment([HEAD], [batch(0)], [batch(10)], [batch(20)], [batch(30)])
    broken = bytearray(data)
    for end in (ends[3], ends[5]):
        broken[end - 1] ^= 1
    broken[ends[1] : ends[1]] = b"x" * 1000
    first, lost, second, last = (end + 1000 for end in ends[1:5])
    length = second - lost
    said = f"{length} bytes unreadable (its header says Batch, {length} bytes)"
    scan = scan_segment(bytes(broken), _SEGMENT, newest=False)
    moved = "1000 bytes unreadable (no readable header), 1000 bytes inserted"
    assert scan.damages == (
        Damage(ends[1], 1000, moved, 1, first),
        Damage(lost, length, said, 1, second),
        Damage(last, length, said, 0, None),
    )
    assert [placed.at for placed in scan.frames] == [ends[0], first, second]


def _unfinished() -> tuple[bytes, int, int]:
    """A segment whose last round lacks its end, and where this begins and ends."""
    whole: list[list[Frame]] = [[HEAD], [batch(0)]]
    data = segment(*whole, [batch(10), batch(20), SourcePosition("file", b"30")])
    end = scan_segment(data, _SEGMENT, newest=True).frames[3].end
    return data[:end], len(segment(*whole)), end


def test_a_scan_leaves_the_bytes_of_batches_in_the_file() -> None:
    """All together may be larger than memory."""
    frames = frames_of(scan_segment(segment(FRAMES), _SEGMENT, newest=True))
    assert [one.data for one in frames if isinstance(one, BatchFrame | Waiting)] == [b"", b""]


def test_an_unfinished_round_is_cut_as_a_whole() -> None:
    """A position is never taken without the events it covers, nor events without it."""
    data, start, end = _unfinished()
    scan = scan_segment(data, _SEGMENT, newest=True)
    torn = TornTail(_SEGMENT, start, end - start, 2)
    assert scan == Scan(_SEGMENT, end, FORMAT_VERSION, scan.frames, (), torn)
    assert frames_of(scan) == [HEAD, without_bytes(batch(0))]


def test_an_older_segment_whose_last_round_has_no_end_is_damaged() -> None:
    """All of the round is told of, or that there is no round at all; what is good is there."""
    data, start, end = _unfinished()
    for cut, begins, kept in ((end, start, 4), (PREAMBLE_LENGTH, PREAMBLE_LENGTH, 0)):
        scan = scan_segment(data[:cut], _SEGMENT, newest=False)
        damage = Damage(begins, cut - begins, "the end of a round is missing", 0, None)
        assert scan == Scan(_SEGMENT, cut, FORMAT_VERSION, scan.frames, (damage,), None)
        assert len(scan.frames) == kept


def test_a_damaged_preamble_is_told_first_and_lets_nothing_be_cut() -> None:
    """Not even what would else be a torn tail."""
    data, ends = synced_segment([HEAD], [batch(0)], [batch(10)])
    scan = scan_segment(b"?" + data[1:-5], _SEGMENT, newest=True)
    assert scan.torn is None
    assert [damage.offset for damage in scan.damages] == [0, ends[-2]]


def test_two_damaged_places_are_both_told() -> None:
    """`verify` tells all that is wrong, not only the first."""
    data, ends = synced_segment([HEAD], [batch(0)], [batch(10)], [batch(20)], [batch(30)])
    broken = bytearray(data)
    broken[ends[1] + 5] ^= 1
    broken[ends[3] + 5] ^= 1
    scan = scan_segment(bytes(broken), _SEGMENT, newest=True)
    assert [ends[1], ends[3]] == [damage.offset for damage in scan.damages]
    assert "its header says Batch" in scan.damages[0].lost
    assert "1 good frame(s) follow" in scan.damages[0].follows


def test_sound_bytes_that_are_no_frame_are_refused() -> None:
    """As of a writer that broke the format: the checksum is right, and the content is not."""
    encoded = b"".join(encode_round([Commit(whole=True)], seed=_SEED, offset=0, synced=0).buffers)
    header, length = encoded[: HEADER_LENGTH - 4], len(encoded) - HEADER_LENGTH
    nothing = b"\xc1" * length  # a byte that MessagePack never has
    crc = google_crc32c.extend(_SEED, header + nothing)
    assert decode_frame(header + crc.to_bytes(4, "big") + nothing, 0, _SEED) is None
    assert decode_frame(encoded, 0, _SEED) is not None


def _sealed(head: bytes, rest: bytes, seed: int = 0) -> bytes:
    """Bytes with the checksum of a writer that meant them."""
    return head + int(google_crc32c.extend(seed, head + rest)).to_bytes(4, "big") + rest


def test_sound_bytes_of_another_magic_or_type_are_no_frame() -> None:
    """The checksum alone makes no frame, and no preamble."""
    encoded = b"".join(encode_round([Commit(whole=True)], seed=_SEED, offset=0, synced=0).buffers)
    header, meta = encoded[: HEADER_LENGTH - 4], encoded[HEADER_LENGTH:]
    assert _sealed(header, meta, _SEED) == encoded
    for other in (b"\xabSQG" + header[4:], header[:4] + b"\x63" + header[5:]):
        assert decode_frame(_sealed(other, meta, _SEED), 0, _SEED) is None
    preamble = encode_preamble(_SEGMENT)[: PREAMBLE_LENGTH - 4]
    assert decode_preamble(_sealed(preamble, b"")) == (FORMAT_VERSION, _SEGMENT)
    assert decode_preamble(_sealed(b"SQTRJRNK" + preamble[8:], b"")) is None


@pytest.mark.parametrize("part", [True, False])
def test_frames_of_a_part_of_a_round_are_marked(part: bool) -> None:
    """They count from a commit on; a frame that nobody says it of is of none."""
    encoded = encode_round(FRAMES, seed=_SEED, offset=0, synced=0, part=part)
    data = b"".join(encoded.buffers)
    at = 0
    for length in encoded.lengths:
        placed = decode_frame(data, at, _SEED)
        assert placed is not None
        assert (placed.part, placed.length) == (part, length)
        at = placed.end
    assert at == len(data)


def test_frame_is_by_itself_unless_a_part_is_asked_for() -> None:
    """And without a body its bytes are one buffer: header and meta."""
    (only,) = encode_frame(FRAMES[-1], seed=_SEED, offset=0, synced=0, last=True)
    assert decode_frame(only, 0, _SEED) == PlacedFrame(
        0, 0, len(only), last_in_round=True, synced=0, frame=FRAMES[-1], part=False
    )
    assert int.from_bytes(only[10:14], "big") == 0  # data length


def test_first_sound_frame_from_a_place_on_is_found() -> None:
    """At the place itself, or behind it; of those that were written no earlier than asked for."""
    encoded = encode_round(FRAMES[:3], seed=_SEED, offset=0, synced=0)
    data = b"".join(encoded.buffers)
    first, second, third = (sum(encoded.lengths[:number]) for number in range(3))
    for at, lowest, expected in [
        (0, 0, first),
        (1, 0, second),
        (0, 1, second),
        (0, second, second),
        (0, second + 1, third),
        (second, 0, second),
        (second + 1, 0, third),
    ]:
        found = find_frame(data, at, _SEED, lowest)
        assert found is not None
        assert found.at == expected
    assert find_frame(data, third + 1, _SEED, 0) is None


def test_damaged_frame_is_described_by_its_header() -> None:
    """As far as there is one: its type, and the length with meta and data."""
    data = b"".join(encode_round([batch()], seed=_SEED, offset=0, synced=0).buffers)
    said = f"its header says Batch, {len(data)} bytes"
    assert stated_frame(data, 0) == said
    assert stated_frame(b"xyz" + data[:HEADER_LENGTH], 3) == said
    unknown = data[:4] + b"\x63" + data[5:]
    assert stated_frame(unknown, 0) == f"its header says unknown type 99, {len(data)} bytes"
    assert stated_frame(data[: HEADER_LENGTH - 1], 0) == "no readable header"
    assert stated_frame(data, 1) == "no readable header"
