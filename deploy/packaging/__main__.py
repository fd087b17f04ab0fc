"""Write the generated files: ``python -m deploy.packaging`` from the root of the repository."""

from __future__ import annotations

from pathlib import Path

from deploy.packaging import GENERATED


def main() -> None:
    """Write every generated file."""
    root = Path(__file__).resolve().parents[2]
    for name, make in GENERATED.items():
        text = make(root)
        if text is None:
            print(f"{name}: nothing to make it from")
            continue
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        print(name)


if __name__ == "__main__":
    main()
