fixed_directions = None
