"""Tests of composition root."""
