"""Published models: what their files are called inside, how they lie, and what they mean here."""
