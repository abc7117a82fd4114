"""Commands about the directories of one bookie."""
