"""Commands of this house; the command line of the library finds them by name."""
