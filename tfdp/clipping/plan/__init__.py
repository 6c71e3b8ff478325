"""Which rule each call follows, and what is refused before a step; nothing here runs in one."""
