"""Tests of the channel plane."""
