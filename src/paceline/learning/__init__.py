"""Learning: what every step teaches about time and acceptance, from which a policy decides the next one."""
