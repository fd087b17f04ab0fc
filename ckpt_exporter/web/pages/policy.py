"""What the status page may do: run this script, use this style sheet, ask this server; nothing else."""

from __future__ import annotations

from base64 import b64encode
from hashlib import sha256
from typing import Final

from ckpt_exporter.web.pages.script import SCRIPT
from ckpt_exporter.web.pages.style import STYLE


def _source(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


PAGE_POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        f"script-src {_source(SCRIPT)}",
        f"style-src {_source(STYLE)}",
        "connect-src 'self'",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)

# A page of another version, met while updating itself, is loaded anew.
LOOK: Final = sha256((SCRIPT + STYLE).encode()).hexdigest()[:12]
