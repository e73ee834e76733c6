"""Every call to the API server, and only those: what is decided here is nothing."""
