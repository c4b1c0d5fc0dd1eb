"""Tests of cortextx.interaction.slave."""
