"""Tests of the pure building blocks."""
