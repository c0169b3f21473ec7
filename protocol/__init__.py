"""What crosses between server and client: all that they share besides models/ and data/."""
