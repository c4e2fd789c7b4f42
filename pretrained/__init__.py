"""Published models: translates their config keys, tensor names and layouts to ours, and back."""
