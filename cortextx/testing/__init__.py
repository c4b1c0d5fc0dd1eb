"""Public fakes for tests of code that uses CortexTX: pairs, peers, disks and stores."""
