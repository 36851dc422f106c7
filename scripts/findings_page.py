"""Write docs/findings.md from the package's finding table."""

from pathlib import Path

from mtpconv.inventory.explain_finding import findings_page

PAGE = Path(__file__).parents[1] / "docs/findings.md"

if __name__ == "__main__":
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(findings_page(), encoding="utf-8")
    print(f"wrote {PAGE}")
