-- ?1: type
delete from {prefix}paused where type = ?1
