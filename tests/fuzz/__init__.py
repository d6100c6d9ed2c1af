"""Campaigns of hostile clients against a real service, beside a well-formed load; `scripts/fuzz`
runs them."""
