"""What a user declares: YAML files under config/, validated before anything starts."""
