-- ?1: name
delete from {prefix}schedule where name = ?1
