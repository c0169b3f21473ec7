"""The methods, one module or folder each: settings, server half and client half."""
