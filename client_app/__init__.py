"""What runs on a device: local training of one slice, its objectives, and the device's budget."""
