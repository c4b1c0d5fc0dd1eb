"""Conversations of `cortextx chat`."""
