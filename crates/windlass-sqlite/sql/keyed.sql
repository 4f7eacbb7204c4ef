-- The chain that a key points at.
-- ?1: chain type; ?2: key
select id from {prefix}job where type = ?1 and key = ?2 and key_held = 1
