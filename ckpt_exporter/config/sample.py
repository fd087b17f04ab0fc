"""The commented sample file and the reference table, both written from the schema."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Final

from ckpt_exporter.config.schema import SECTIONS, Key, Required, keys

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

_LINE_CHARACTERS: Final = 100
_HEADER: Final = """\
# Configuration of ckpt-exporter. Only `directories` is needed; the other keys show their defaults.
# Check a changed file with: ckpt-exporter check --config.file=FILE
"""


def sample_text() -> str:
    """Return a commented configuration file that shows every key."""
    table = keys(())
    blocks = ["\n".join(_sample_block(section, table)) for section in SECTIONS]
    return _HEADER + "\n" + "\n\n".join(blocks) + "\n"


def _sample_block(section: str, table: tuple[Key, ...]) -> Iterator[str]:
    yield f"# {SECTIONS[section]}"
    yield f"{section}:"
    listed = section == "directories"
    indent = "    " if listed else "  "
    for number, key in enumerate(key for key in table if key.section == section):
        yield from textwrap.wrap(
            key.help, _LINE_CHARACTERS, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# "
        )
        lead = "  - " if listed and number == 0 else indent
        # A key that is off by default stays off in the sample.
        yield f"{lead}{'# ' if key.default is None else ''}{key.name}: {key.example}"


def reference_table(layouts: Collection[str]) -> str:
    """Return a Markdown table of every key: type, default, flag and meaning."""
    rows = ["| key | type | default | flag | meaning |", "|---|---|---|---|---|"]
    for key in keys(layouts):
        place = key.path.replace("directories.", "directories[].")
        flag = f"`{key.flag}`" if key.flag else ""
        rows.append(f"| `{place}` | {key.type} | {_default(key)} | {flag} | {_meaning(key, layouts)} |")
    return "\n".join(rows) + "\n"


def _default(key: Key) -> str:
    if key.default is Required:
        return "required"
    if key.default is None or key.default == ():
        return "none"
    return f"`{key.example}`"


def _meaning(key: Key, layouts: Collection[str]) -> str:
    return f"{key.help} Layouts: {', '.join(layouts)}." if key.name == "layout" and layouts else key.help
