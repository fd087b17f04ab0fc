"""Names from the file system as text that may leave the program."""

from __future__ import annotations


def valid_text(name: str) -> str:
    r"""Write what UTF-8 can't carry as ``\xNN`` (an undecodable byte) or ``\uNNNN`` (another lone surrogate).

    File names are bytes; ``os.fsdecode`` keeps an undecodable byte 0xNN as the lone surrogate U+DCNN.
    """
    if name.isascii():
        return name
    return "".join(_valid_character(character) for character in name)


def _valid_character(character: str) -> str:
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"
    if 0xD800 <= code <= 0xDFFF:
        return f"\\u{code:04x}"
    return character
