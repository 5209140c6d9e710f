"""The backends: one file or folder for each way of giving a process its share of a device."""
