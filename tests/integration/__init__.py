"""Tests with real processes, real files and real sockets, each bounded in time.

A test that needs a program from outside names it with `peers.need`: without it
the test is skipped, or fails where REQUIRE_PEERS=1 says that all are there.
"""
