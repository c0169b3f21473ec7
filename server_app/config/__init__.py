"""What a run was asked to do: conf/ and overrides, composed and checked."""
