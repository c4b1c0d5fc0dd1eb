"""Tests of the wire contracts, one a normative statement."""
