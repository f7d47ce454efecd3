"""bench: what speculation gains on this machine, measured side by side: tasks, modes, curves, peers, records."""
