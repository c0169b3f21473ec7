"""The commands of `nestfl`, one file each."""
