"""The web site's tests."""
