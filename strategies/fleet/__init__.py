"""Who is there: the nodes, what they say of themselves, and messages to and from them."""
