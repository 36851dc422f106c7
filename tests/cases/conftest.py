"""Every case has a digest cache of its own."""

from tests.cases.kit import cache_of_its_own

__all__ = ["cache_of_its_own"]
