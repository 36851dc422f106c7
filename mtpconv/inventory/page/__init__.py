"""The HTML report: one page that needs nothing but itself, drawn from a report's own data."""
