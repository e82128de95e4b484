"""Authoritative for what callers may write in free text: names of artifacts, boundaries, media types."""

import unicodedata

from libs.kernel.refusal import invalid_field
from services.checkpoint.domain.values import NAME_LIMIT, Header

_FORBIDDEN = frozenset("/\\")


def check_text(field: str, text: str, limit: int = NAME_LIMIT) -> None:
    """Refuses what would break a log line or a terminal: control characters, and too much."""
    if len(text) > limit:
        raise invalid_field(field, f"has {len(text)} characters, more than {limit}", "shorten it")
    if any(unicodedata.category(letter) in ("Cc", "Cs", "Zl", "Zp") for letter in text):
        raise invalid_field(field, "holds a control character or line break", "leave it out")


def check_header(header: Header) -> None:
    """Refuses a name that is not the plain name of a file."""
    check_text("header.name", header.name)
    check_text("header.media_type", header.media_type)
    if header.name in (".", "..") or _FORBIDDEN & set(header.name) or header.name != header.name.strip():
        raise invalid_field("header.name", "is not a plain file name", "use no slashes, no dots alone, no space at the ends")
