"""Where an agent's log entries come from: tailers as machines, and their adapters."""
