use redis::{Client, Connection, RedisResult};

/// Whether a request of `user` is admitted; if not, the seconds after which to retry.
fn throttle(connection: &mut Connection, user: &str) -> RedisResult<Result<i64, i64>> {
    // 16 at once, 30 per hour.
    let mut command = redis::cmd("CL.THROTTLE");
    command.arg(user).arg(15).arg(30).arg(3_600);
    let (limited, _limit, remaining, retry_after, _reset_after): (i64, i64, i64, i64, i64) =
        command.query(connection)?;
    Ok(if limited == 0 { Ok(remaining) } else { Err(retry_after) })
}

pub fn example(url: &str) -> RedisResult<()> {
    let mut connection = Client::open(url)?.get_connection()?;
    match throttle(&mut connection, "user123")? {
        Ok(remaining) => println!("admitted, {remaining} left"),
        Err(retry_after) => println!("rejected, retry in {retry_after} s"),
    }
    Ok(())
}
