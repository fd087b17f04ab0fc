"""Licences and bill of materials of what the image and the bundle contain, from the lock and the packages."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Any, Final

import tomllib

from ckpt_exporter import __version__

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LOCK: Final = "deploy/docker/requirements.txt"
# What packages say in words, as SPDX says it.
_SPDX: Final = {
    "MIT": "MIT",
    "MIT License": "MIT",
    "BSD": "BSD-3-Clause",
    "BSD License": "BSD-3-Clause",
    "BSD-3-Clause": "BSD-3-Clause",
    "Apache Software License": "Apache-2.0",
    "Apache License 2.0": "Apache-2.0",
    "Apache-2.0": "Apache-2.0",
}


@dataclass(frozen=True, slots=True)
class Locked:
    """One package of the lock. ``extra`` is what asks for it, None for the program itself."""

    name: str
    version: str
    extra: str | None


def locked(root: Path) -> tuple[Locked, ...]:
    """Return the locked packages in the order of their names."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    auth = {_name(line) for line in project["optional-dependencies"]["auth"]}
    text = (root / LOCK).read_text(encoding="utf-8")
    return tuple(
        Locked(name, version, "auth" if name in auth else None)
        for name, version in re.findall(r"^([a-z0-9-]+)==([^ \\;]+)", text, flags=re.MULTILINE)
    )


def _name(requirement: str) -> str:
    return re.split(r"[<>=! \[;]", requirement, maxsplit=1)[0].lower()


def licence(name: str) -> str:
    """Return the SPDX expression of an installed package; raises LookupError if it says nothing known."""
    about = metadata.metadata(name)
    for expression in about.get_all("License-Expression") or ():
        return str(expression)
    said = [str(words) for words in about.get_all("License") or ()]
    said += [line.rpartition(" :: ")[2] for line in about.get_all("Classifier") or () if "License ::" in line]
    for words in said:
        if words in _SPDX:
            return _SPDX[words]
    raise LookupError(f"{name}: no licence known for {said}")


def licences_page(root: Path) -> str:
    """Return the page with the licence of every package that is shipped."""
    rows = [
        f"| {package.name} | {package.version} | {licence(package.name)} | {package.extra or ''} |"
        for package in _installed(root)
    ]
    return "\n".join(
        [
            "# Licences of what is shipped",
            "",
            "ckpt-exporter itself is under Apache-2.0. The image and the bundle contain these packages, as",
            "`deploy/docker/requirements.txt` locks them; the table is generated (`make generated`).",
            "The image's base (Python on Debian) brings its own, listed in its `/usr/share/doc/*/copyright`.",
            "",
            "| package | version | licence | extra |",
            "|---|---|---|---|",
            *rows,
            "",
        ]
    )


def bill_of_materials(root: Path) -> str:
    """Return a CycloneDX 1.5 document: the program, its locked packages, and who needs whom.

    It has neither a serial number nor a time, so that the same packages give the same text.
    """
    packages = list(_installed(root))
    program = f"pkg:pypi/ckpt-exporter@{__version__}"
    document: dict[str, Any] = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": program,
                "name": "ckpt-exporter",
                "version": __version__,
                "purl": program,
                "licenses": [{"expression": "Apache-2.0"}],
            }
        },
        "components": [_component(package) for package in packages],
        "dependencies": [
            {"ref": program, "dependsOn": [_purl(package) for package in packages]},
            *({"ref": _purl(package)} for package in packages),
        ],
    }
    return json.dumps(document, indent=2) + "\n"


def _purl(package: Locked) -> str:
    return f"pkg:pypi/{package.name}@{package.version}"


def _component(package: Locked) -> dict[str, Any]:
    return {
        "type": "library",
        "bom-ref": _purl(package),
        "name": package.name,
        "version": package.version,
        "purl": _purl(package),
        "scope": "optional" if package.extra else "required",
        "licenses": [{"expression": licence(package.name)}],
    }


def _installed(root: Path) -> Iterator[Locked]:
    """Yield the locked packages; raises LookupError when another version is installed here."""
    for package in locked(root):
        version = metadata.version(package.name)
        if version != package.version:
            raise LookupError(f"{package.name}: {package.version} is locked, {version} is installed")
        yield package
