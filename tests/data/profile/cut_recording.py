"""Cuts a recording of `pianola profile` after so many seconds of the device's work, so that it is small enough to keep.

    python cut_recording.py FROM TO SECONDS

Blocks and records are those of pianola/profile/recording_format.hpp; what is kept is kept as it was.
"""

import struct
import sys
from pathlib import Path

HEADER, BLOCK = 32, struct.Struct("<III")  # kind, bytes, records
WORK, CALLS = 2, 3
FIELDS = {WORK: 7, CALLS: 4}  # behind begin and duration
CORRELATION = {WORK: 4, CALLS: 3}  # which of them it is; like the begin it is told relative to the record before


def take_number(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, at


def number(value):
    data = bytearray()
    while value > 127:
        data.append(value & 127 | 128)
        value >>= 7
    return bytes([*data, value])


def signed(number):
    return (number >> 1) ^ -(number & 1)


def zigzag(value):
    return (value << 1) ^ (value >> 63)


def decode(kind, data, count):
    """[(begin, duration, fields)]; the duration as it is in the file."""
    records, at, begin, correlation = [], 0, 0, 0
    for _ in range(count):
        difference, at = take_number(data, at)
        begin += signed(difference)
        duration, at = take_number(data, at)
        fields = []
        for _ in range(FIELDS[kind]):
            value, at = take_number(data, at)
            fields.append(value)
        correlation += signed(fields[CORRELATION[kind]])
        fields[CORRELATION[kind]] = correlation
        records.append((begin, duration, fields))
    return records


def encode(kind, records):
    data, begin_before, correlation_before = bytearray(), 0, 0
    for begin, duration, fields in records:
        data += number(zigzag(begin - begin_before)) + number(duration)
        correlation = fields[CORRELATION[kind]]
        for i, field in enumerate(fields):
            data += number(zigzag(correlation - correlation_before) if i == CORRELATION[kind] else field)
        begin_before, correlation_before = begin, correlation
    return bytes(data)


def blocks_of(data):
    at = HEADER
    while at + BLOCK.size <= len(data):
        kind, size, count = BLOCK.unpack_from(data, at)
        at += BLOCK.size
        yield kind, data[at:at + size], count
        at += size


def main(source, target, seconds):
    data = Path(source).read_bytes()
    blocks = list(blocks_of(data))
    begins = [begin for kind, block, count in blocks if kind == WORK for begin, _, _ in decode(kind, block, count)]
    end = min(begins) + int(seconds * 1e9)
    cut = bytearray(data[:HEADER])
    for kind, block, count in blocks:
        if kind in FIELDS:
            kept = [record for record in decode(kind, block, count) if record[0] < end]
            block, count = encode(kind, kept), len(kept)
        cut += BLOCK.pack(kind, len(block), count) + block
    Path(target).write_bytes(cut)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]))
