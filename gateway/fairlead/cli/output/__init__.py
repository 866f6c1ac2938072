"""How answers of the API are printed: as tables, JSON, YAML or bare names, once or whenever they change."""
