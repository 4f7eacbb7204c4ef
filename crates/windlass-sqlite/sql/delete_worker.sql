-- ?1: id
delete from {prefix}worker where id = ?1
