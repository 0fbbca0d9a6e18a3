"""What pipelines and the purger share: a guard of the memory, and a thread with an event loop."""
