-- ?1: name
delete from {prefix}leader where name = ?1
