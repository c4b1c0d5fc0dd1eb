"""The Agent Session Slave: owns sessions, their logs and their runs; serves masters."""
