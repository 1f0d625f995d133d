"""The runtime on Ray: every actor a process that Ray places and supervises; time is the wall clock."""
