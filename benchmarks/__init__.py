"""Races against rivals: every figure of the README comes from here, by `make bench`."""
