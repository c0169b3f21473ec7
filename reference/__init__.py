"""Generates documentation pages from the project itself when the site is built."""
