"""What both sides train and test with: the loop, losses, optimisers, devices, evaluation."""
