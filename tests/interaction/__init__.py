"""Tests of the Interaction ABI."""
