"""The methods, one file each: settings, server half and client half."""
