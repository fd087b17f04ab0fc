"""Pure detection: facts with their times in, saves out. No thread, clock or file."""
