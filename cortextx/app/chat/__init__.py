"""`cortextx chat` behind its options: the conversation, a pipe, a terminal."""
