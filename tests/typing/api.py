"""Each documented call, as the type checker sees it; nothing here runs."""
