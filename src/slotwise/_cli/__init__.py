"""The command line: what a user types and sees."""
