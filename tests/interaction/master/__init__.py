"""Tests of interaction.master."""
