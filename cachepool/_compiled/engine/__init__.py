"""See `cachepool._compiled`."""
