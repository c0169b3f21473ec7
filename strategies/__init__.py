"""Plans levels, assigns slices and aggregates the clients' updates on the server."""
