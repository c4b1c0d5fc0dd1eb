"""What a session runs: echo, a child process, a model behind HTTP."""
