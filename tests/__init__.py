"""The tests: units by package, contracts by section, integration with real processes."""
