"""The records that cross between server and client, and the code that both use to read them."""
