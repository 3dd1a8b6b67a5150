#!/usr/bin/env python3
"""Writes one page a check beside itself, and an index of them. Holds no text of its own: the checks' files do."""

from __future__ import annotations

from pathlib import Path

from hostsetup.checks import catalogue


def main() -> None:
    """Write `<id>.md` for every check, and README.md."""
    here = Path(__file__).parent
    index = ["# Host checks", "", "A title is true when its check fails.", ""]
    for check in catalogue():
        title, _, body = check.page.partition("\n")
        lines = [f"# {check.id}", "", title]
        # in a page a part's name stands alone at the margin, its text is indented
        lines += [f"## {line}\n" if line and not line.startswith(" ") else line.strip() for line in body.splitlines()]
        (here / f"{check.id}.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
        index.append(f"- [{check.id}]({check.id}.md): {title}")
    (here / "README.md").write_text("\n".join(index) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
