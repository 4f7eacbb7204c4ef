-- A number that changes when another connection commits.
pragma data_version
