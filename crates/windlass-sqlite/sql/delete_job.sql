-- ?1: seq
delete from {prefix}job where seq = ?1
