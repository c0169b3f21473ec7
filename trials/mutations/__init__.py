"""Small faults, put into the source one at a time: do the tests of that source notice them?"""
