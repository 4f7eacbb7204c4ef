-- ?1: [seq, ...]
delete from {prefix}job where seq in (select value from json_each(?1))
