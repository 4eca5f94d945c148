"""sequitur"""
