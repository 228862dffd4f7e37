"""What a layout will need and take: memory, operations, bytes on each link, the time of a step. From shapes alone."""
