-- A leader lock.
-- ?1: name
select token, until from {prefix}leader where name = ?1
