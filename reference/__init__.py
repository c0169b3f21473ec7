"""The pages of the documentation that are made from the project itself, when the site is built."""
