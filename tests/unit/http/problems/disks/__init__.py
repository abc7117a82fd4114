"""Problems with the disks and directories of bookies."""
