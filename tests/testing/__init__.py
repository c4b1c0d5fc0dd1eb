"""Tests of the public fakes."""
