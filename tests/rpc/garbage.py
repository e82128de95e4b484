"""Seeded nonsense for any protobuf message: noise in every field, or one field of a good request made bad.

Authoritative for nothing. Can go wrong: noise that the first check stops every time and that proves nothing further in.
Therefore ids of real things are mixed in, and good requests are spoilt in one place.
"""

import random
from collections.abc import Iterator
from typing import Any

from google.protobuf import duration_pb2, struct_pb2
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

TEXTS = (
    "\x00",
    "a\x00b",
    "%00",
    "'; DROP TABLE run; --",
    "../../etc/passwd",
    "\U0001f6eb‮﷽\u200b",
    "é" * 60,
    "a\nb\rc\td",
    "\x7f\x1b[31m",
    " ",
    "{}",
    "null",
    "-1",
    "x" * 200,
    "y" * 5_000,
    "w@99999999999999999999",
    "00000000-0000-0000-0000-000000000000",
    "ffffffff-ffff-ffff-ffff-ffffffffffff",
    "A" * 64,
    "0" * 64,
)
STRANGE = ("\x00", "n\x00l", "\U0001f6eb\u202e\ufdfd", "\u2028\n\x1b[2J")
"""What every text field must survive."""
INTEGERS = (0, 1, -1, 2, 7, 255, 1000, 2**31 - 1, -(2**31), 2**53, 2**63 - 1, -(2**63))
UNSIGNED = (0, 1, 2**32 - 1, 2**64 - 1)
REALS = (0.0, -0.0, 1.5, float("nan"), float("inf"), float("-inf"), 1e308, 5e-324, 2.0**53, 2.0**53 + 2)
_SMALL = (FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_UINT32)
_DEEPEST = 4


class Noise:
    """A source of bad values. `known` holds texts and bytes of real things, so that some noise gets past the first look."""

    def __init__(self, seed: int, texts: tuple[str, ...] = (), blobs: tuple[bytes, ...] = ()) -> None:
        self.random = random.Random(seed)
        self._texts = texts
        self._blobs = blobs

    def raw(self) -> bytes:
        """Bytes that are no message, or one by chance."""
        return self.random.randbytes(self.random.choice((1, 2, 7, 40, 300)))

    def cut(self, message: Message) -> bytes:
        """A message with a byte changed, or without its end."""
        wire = bytearray(message.SerializeToString())
        if not wire:
            return self.raw()
        if self.random.random() < 0.5:
            return bytes(wire[: self.random.randrange(len(wire))])
        wire[self.random.randrange(len(wire))] ^= 1 << self.random.randrange(8)
        return bytes(wire)

    def fill(self, message: Any, depth: int = 0) -> Any:
        """Noise in each field, or in most of them."""
        for field in message.DESCRIPTOR.fields:
            if self.random.random() < 0.85:
                self.spoil(message, field, depth)
        return message

    def spoil_one(self, message: Any) -> str:
        """One field of a good request, however deep, made bad; its name."""
        places = list(_places(message))
        if not places:
            return "nothing to spoil"
        parent, field = self.random.choice(places)
        parent.ClearField(field.name)
        if self.random.random() < 0.9:
            self.spoil(parent, field, _DEEPEST - 1)
        return str(field.full_name)

    def strange_texts(self, template: Any) -> Iterator[tuple[str, bytes]]:
        """The request once for each of its text fields and each strange text in it; the field's name and the bytes."""
        for number, (_, field) in enumerate(_places(template)):
            if field.type != FieldDescriptor.TYPE_STRING:
                continue
            for text in STRANGE:
                copy = type(template)()
                copy.CopyFrom(template)
                parent, _ = list(_places(copy))[number]
                if field.is_repeated:
                    del getattr(parent, field.name)[:]
                    getattr(parent, field.name).append(text)
                else:
                    setattr(parent, field.name, text)
                yield f"{field.full_name} {text!r}", copy.SerializeToString()

    def spoil(self, message: Any, field: FieldDescriptor, depth: int) -> None:
        """Noise in one field."""
        entries = field.message_type is not None and field.message_type.GetOptions().map_entry
        if entries:
            self._entries(getattr(message, field.name), field)
        elif field.is_repeated:
            values = getattr(message, field.name)
            for _ in range(self.random.choice((1, 1, 2, 3))):
                if field.message_type is not None:
                    self._nested(values.add(), depth)
                else:
                    values.append(self.scalar(field))
        elif field.message_type is not None:
            nested = getattr(message, field.name)
            nested.SetInParent()
            self._nested(nested, depth)
        else:
            setattr(message, field.name, self.scalar(field))

    def _entries(self, entries: Any, field: FieldDescriptor) -> None:
        assert field.message_type is not None
        key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
        for _ in range(2):
            if value.message_type is None:
                entries[self.scalar(key)] = self.scalar(value)
            else:
                self._nested(entries[self.scalar(key)], _DEEPEST)

    def _nested(self, message: Any, depth: int) -> None:
        if isinstance(message, struct_pb2.Value):
            self._value(message, 0)
        elif isinstance(message, duration_pb2.Duration):
            message.seconds = self.random.choice((0, 1, -1, 2**40, 315_576_000_000, -315_576_000_000, 2**63 - 1))
            message.nanos = self.random.choice((0, 1, -1, 999_999_999, 2**31 - 1))
        elif depth < _DEEPEST:
            self.fill(message, depth + 1)

    def _value(self, value: struct_pb2.Value, depth: int) -> None:
        kind = self.random.randrange(7)
        if kind == 0:
            value.null_value = struct_pb2.NULL_VALUE
        elif kind == 1:
            value.number_value = self.random.choice(REALS)
        elif kind == 2:
            value.string_value = self.random.choice(TEXTS)
        elif kind == 3:
            value.bool_value = True
        elif kind == 4 and depth < _DEEPEST:
            self._value(value.struct_value.fields[self.random.choice(TEXTS)], depth + 1)
        elif kind == 5 and depth < _DEEPEST:
            self._value(value.list_value.values.add(), depth + 1)
        elif kind == 6:
            deep = value
            for _ in range(self.random.choice((3, 30, 90))):
                deep = deep.list_value.values.add()

    def scalar(self, field: FieldDescriptor) -> Any:
        """A bad, strange or borrowed value of a field's type."""
        pick = self.random.choice
        kind = field.cpp_type
        if kind == FieldDescriptor.CPPTYPE_STRING:
            if field.type == FieldDescriptor.TYPE_BYTES:
                sizes = (0, 1, 15, 16, 16, 17, 32, 32, 1024)
                if self._blobs and self.random.random() < 0.4:
                    return pick(self._blobs)
                return self.random.randbytes(pick(sizes))
            return pick(self._texts if self._texts and self.random.random() < 0.4 else TEXTS)
        if kind == FieldDescriptor.CPPTYPE_ENUM:
            return pick((0, 1, 2, 3, 99, -1, 2**31 - 1))
        if kind == FieldDescriptor.CPPTYPE_BOOL:
            return bool(self.random.getrandbits(1))
        if kind in (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT):
            return pick(REALS)
        if kind in (FieldDescriptor.CPPTYPE_UINT32, FieldDescriptor.CPPTYPE_UINT64):
            return pick(UNSIGNED[:3] if kind in _SMALL else UNSIGNED)
        return pick(INTEGERS[:9] if kind in _SMALL else INTEGERS)


def _places(message: Any) -> Iterator[tuple[Any, FieldDescriptor]]:
    """Each field of a message and of the messages in it."""
    for field in message.DESCRIPTOR.fields:
        yield message, field
    for field, value in message.ListFields():
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        for nested in value if field.is_repeated else [value]:
            yield from _places(nested)
