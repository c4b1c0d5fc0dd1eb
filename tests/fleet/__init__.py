"""Tests of the fleet plane."""
