"""Published models: their config keys, tensor names and layouts, and ours."""
