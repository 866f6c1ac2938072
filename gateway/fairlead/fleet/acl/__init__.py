"""What each user of Redis may do there, and how to find out what one lacks."""
