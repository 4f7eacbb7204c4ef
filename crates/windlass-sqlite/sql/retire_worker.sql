-- ?1: worker
delete from {prefix}worker where id = ?1 returning expires_at
